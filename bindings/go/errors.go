package proxycfg

// #include "capi.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Code says how a call failed. A Code is an error itself, for [errors.Is]:
//
//	if errors.Is(err, proxycfg.ErrRefused) { ... }
type Code int32

// The codes.
const (
	// ErrInvalidUTF8 says that a text isn't UTF-8.
	ErrInvalidUTF8 Code = C.PROXYCFG_RESULT_INVALID_UTF8
	// ErrInvalidArgument says that an argument makes no sense.
	ErrInvalidArgument Code = C.PROXYCFG_RESULT_INVALID_ARGUMENT
	// ErrRefused says that records or a registration break a rule; the message lists all problems. Nothing has changed.
	ErrRefused Code = C.PROXYCFG_RESULT_REFUSED
	// ErrNotFound says that there is no such thing.
	ErrNotFound Code = C.PROXYCFG_RESULT_NOT_FOUND
	// ErrOtherSource says that another source has registered the proxy.
	ErrOtherSource Code = C.PROXYCFG_RESULT_OTHER_SOURCE
	// ErrTimedOut says that the time is over.
	ErrTimedOut Code = C.PROXYCFG_RESULT_TIMED_OUT
	// ErrClosed says that the engine, snapshot or source is closed.
	ErrClosed Code = C.PROXYCFG_RESULT_CLOSED
	// ErrEngineThread says that a wait was called from a function that the engine calls, where it could never end.
	ErrEngineThread Code = C.PROXYCFG_RESULT_ENGINE_THREAD
	// ErrPanic says that a defect of the library was caught.
	ErrPanic Code = C.PROXYCFG_RESULT_PANIC
	// ErrSystem says that the operating system refused something.
	ErrSystem Code = C.PROXYCFG_RESULT_SYSTEM
)

func (c Code) Error() string {
	switch c {
	case ErrInvalidUTF8:
		return "text is not UTF-8"
	case ErrInvalidArgument:
		return "invalid argument"
	case ErrRefused:
		return "refused"
	case ErrNotFound:
		return "not found"
	case ErrOtherSource:
		return "registered by another source"
	case ErrTimedOut:
		return "timed out"
	case ErrClosed:
		return "closed"
	case ErrEngineThread:
		return "waiting is not possible in a function that the engine calls"
	case ErrPanic:
		return "internal error"
	case ErrSystem:
		return "refused by the operating system"
	}
	return fmt.Sprintf("error %d", int32(c))
}

// Error is what failed and why.
type Error struct {
	// Op is what was tried.
	Op string
	// Code is how it failed; [errors.Is] compares with it.
	Code Code
	// Message says what is wrong, where, and what to do; several problems take a line each.
	Message string
}

func (e *Error) Error() string { return "proxycfg: " + e.Op + ": " + e.Message }

// Unwrap gives the code.
func (e *Error) Unwrap() error { return e.Code }

func closed(op, what string) error {
	return &Error{op, ErrClosed, "the " + what + " is closed"}
}

// check turns what a call gave into an error.
func check(op string, r C.pc_result) error {
	if r.code == C.PROXYCFG_RESULT_OK {
		return nil
	}
	code := Code(r.code)
	message := code.Error()
	if r.error != nil {
		message = goString(C.proxycfg_error_message(r.error))
		C.proxycfg_error_free(r.error)
	}
	// A handle that was freed, by Close.
	if r.code == C.PROXYCFG_RESULT_INVALID_HANDLE {
		code, message = ErrClosed, "it is closed"
	}
	return &Error{op, code, message}
}

// takeText copies a text that the library made, and frees it.
func takeText(text *C.proxycfg_text) []byte {
	content := C.proxycfg_text_content(text)
	copied := goBytes(unsafe.Pointer(content.data), content.len)
	C.proxycfg_text_free(text)
	return copied
}

func goString(s C.proxycfg_str) string { return string(view(unsafe.Pointer(s.data), s.len)) }

// goBytes copies C memory.
func goBytes(data unsafe.Pointer, length C.size_t) []byte {
	return append(make([]byte, 0, length), view(data, length)...)
}

// view is C memory as a slice, as long as it lives.
func view(data unsafe.Pointer, length C.size_t) []byte {
	if length == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(data), length)
}

// text gives the memory of a Go string for the duration of a call.
func text(s string) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s))
}

// textOf gives the memory of Go bytes for the duration of a call.
func textOf(b []byte) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(b))), C.size_t(len(b))
}
