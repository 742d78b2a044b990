package proxycfg

// #include "capi.h"
import "C"

import (
	"context"
	"log/slog"
	"runtime/cgo"
)

// levels of the library, the least important first.
var levels = []struct {
	library C.int32_t
	slog    slog.Level
}{
	{C.PROXYCFG_LOG_LEVEL_TRACE, slog.LevelDebug - 4},
	{C.PROXYCFG_LOG_LEVEL_DEBUG, slog.LevelDebug},
	{C.PROXYCFG_LOG_LEVEL_INFO, slog.LevelInfo},
	{C.PROXYCFG_LOG_LEVEL_WARN, slog.LevelWarn},
	{C.PROXYCFG_LOG_LEVEL_ERROR, slog.LevelError},
}

// SetLogger has everything that the library logs go to a logger, for the whole process; nil ends it. Levels that the logger
// doesn't want now aren't made. Records come on a thread of their own, with the part of the library as "target".
func SetLogger(logger *slog.Logger) error {
	if logger == nil {
		return check("log", C.pc_log_set(0, 0))
	}
	for _, level := range levels {
		if !logger.Enabled(context.Background(), level.slog) {
			continue
		}
		handle, number := handleOf(logger)
		err := check("log", C.pc_log_set(number, level.library))
		if err != nil {
			handle.Delete()
		}
		return err
	}
	return check("log", C.pc_log_set(0, 0))
}

//export pcGoLog
func pcGoLog(userData C.uintptr_t, level C.int32_t, target, message C.proxycfg_str) {
	logger := cgo.Handle(userData).Value().(*slog.Logger)
	// A handler that panics mustn't end the process; there is no other log to tell.
	defer func() { _ = recover() }()
	for _, known := range levels {
		if known.library == level {
			logger.Log(context.Background(), known.slog, goString(message), "target", goString(target))
		}
	}
}
