package sim

import (
	"os"
	"runtime/trace"
	"runtime/pprof"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if p := os.Getenv("SIM_PROF"); p != "" {
		go func() {
			time.Sleep(30 * time.Second)
			f, _ := os.Create(p)
			pprof.StartCPUProfile(f)
			time.Sleep(3 * time.Second)
			pprof.StopCPUProfile()
			f.Close()
			g, _ := os.Create(p + ".trace")
			trace.Start(g)
			time.Sleep(50 * time.Millisecond)
			trace.Stop()
			g.Close()
		}()
	}
	os.Exit(m.Run())
}
