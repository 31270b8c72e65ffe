//go:build !mutants

package consensus

// planted returns the log as it is (see package mutant).
func planted(file LogFile) LogFile { return file }
