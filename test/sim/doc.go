// Package sim runs a whole global and its zones in one process and in virtual
// time, disturbs them as a seed says, and checks what clients were told, what
// servers held and what zones showed against the promises of package history.
//
// What runs is the product: raft on a network and disks in memory, the store,
// the sync server and client over gRPC. Only networks, disks and time are
// simulated (package simnet, and the media of zones here). A crash loses
// what was not synced.
//
// The seed decides what clients ask for and which faults occur where and when.
// It does not decide how goroutines interleave, so the same seed runs the same
// schedule, not the same history; every failure therefore prints its history.
//
//	SIM_SEED=7 SIM_MINUTES=30 go test ./test/sim -run TestSimulation -v
//
// docs/testing.md says which promise is checked where.
package sim
