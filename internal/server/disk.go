package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/consensus"
)

// DiskCheck is what readiness says about the disk of a server's log. A disk that
// hangs makes the server not ready: nothing gets an answer that has to be
// written. One that is nearly full is only reported: reads continue.
func DiskCheck(disk func() consensus.Disk) Check {
	return Check{
		Name: "disk",
		Ready: func() error {
			if d := disk(); d.Hangs > 0 {
				return d.Err()
			}
			return nil
		},
		Note: func() string {
			if d := disk(); d.Low && d.Hangs == 0 {
				return d.Err().Error()
			}
			return ""
		},
	}
}

// RegisterDisk adds the figures of the disk of a server's log.
func RegisterDisk(metrics prometheus.Registerer, disk func() consensus.Disk) {
	gauge := func(name, help string, value func(consensus.Disk) float64) {
		metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(disk()) }))
	}
	gauge("meridian_disk_free_bytes", "Free space on the disk of the log.", func(d consensus.Disk) float64 { return float64(d.Space.Free) })
	gauge("meridian_disk_reserve_bytes", "Space on that disk that is kept free: with less, this server refuses writes.", func(d consensus.Disk) float64 { return float64(d.Reserve) })
	gauge("meridian_disk_low", "1 while there is less free space than the reserve.", func(d consensus.Disk) float64 {
		if d.Low {
			return 1
		}
		return 0
	})
	gauge("meridian_disk_stalled_seconds", "For how long no write to the log has ended that should have; 0 while it takes less than the limit.", func(d consensus.Disk) float64 {
		return d.Hangs.Seconds()
	})
}
