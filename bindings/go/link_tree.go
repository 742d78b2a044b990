//go:build !proxycfg_external

package proxycfg

// The library as `cargo build -p proxycfg-ffi --release` leaves it in this repository, linked statically.

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo LDFLAGS: ${SRCDIR}/../../target/release/libproxycfg.a -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
import "C"
