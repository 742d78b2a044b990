//go:build proxycfg_external

package proxycfg

// With the tag proxycfg_external nothing is assumed: CGO_CFLAGS and CGO_LDFLAGS say where header and library are, such as
//
//	CGO_CFLAGS=$(pkg-config --cflags proxycfg) CGO_LDFLAGS=$(pkg-config --libs proxycfg) go build -tags proxycfg_external

import "C"
