// Package bare is what a call from Go into C costs at least, for comparison.
package bare

// static int pc_nothing(int n) { return n; }
import "C"

// Call calls a C function that does nothing.
func Call(n int) int { return int(C.pc_nothing(C.int(n))) }
