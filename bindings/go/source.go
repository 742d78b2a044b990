package proxycfg

// #include <stdlib.h>
// #include "capi.h"
import "C"

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// QueryKind is a kind of query that a [Source] can answer.
type QueryKind int32

// The kinds of query, and what their answers are as JSON.
const (
	// CARootsQuery asks for trust roots, in Consul's form.
	CARootsQuery QueryKind = C.PROXYCFG_QUERY_KIND_CA_ROOTS
	// LeafQuery asks for the certificate of a service, in Consul's form, with its private key.
	LeafQuery QueryKind = C.PROXYCFG_QUERY_KIND_LEAF
	// IntentionsQuery asks who may call a service: a list of intentions.
	IntentionsQuery QueryKind = C.PROXYCFG_QUERY_KIND_INTENTIONS
	// MeshQuery asks for settings of the mesh: the config entry, or null.
	MeshQuery QueryKind = C.PROXYCFG_QUERY_KIND_MESH
	// JWTProvidersQuery asks for all token providers: a list of config entries.
	JWTProvidersQuery QueryKind = C.PROXYCFG_QUERY_KIND_JWT_PROVIDERS
	// ChainQuery asks for a compiled discovery chain.
	ChainQuery QueryKind = C.PROXYCFG_QUERY_KIND_CHAIN
	// EndpointsQuery asks for the instances of a service: a list of {"Node", "ServiceID", "Address", "Port", "Health",
	// "Weight"}.
	EndpointsQuery QueryKind = C.PROXYCFG_QUERY_KIND_ENDPOINTS
	// ServiceConfigQuery asks for the central configuration of a service, resolved: {} if there is none.
	ServiceConfigQuery QueryKind = C.PROXYCFG_QUERY_KIND_SERVICE_CONFIG
	// ServiceRecordQuery asks for the registration of an instance: a service instance, or null.
	ServiceRecordQuery QueryKind = C.PROXYCFG_QUERY_KIND_SERVICE_RECORD
	// ExposedChecksQuery asks what of an instance's own checks its sidecar opens: {"Paths": [...], "AgentAddress": ...}.
	ExposedChecksQuery QueryKind = C.PROXYCFG_QUERY_KIND_EXPOSED_CHECKS
)

// Query is something that the engine wants to know, for as long as the subscription lasts.
type Query struct {
	// Subscription is what it is answered by; never used again within an engine.
	Subscription uint64
	// Kind is the kind of query.
	Kind QueryKind
	// Token is what the data is fetched with: that of the proxies that want the answer.
	Token string
	// JSON is what is asked: {"Kind": "endpoints", "Service": "db", "Datacenter": "dc1"}.
	JSON []byte
}

// Source answers queries of an engine: of a program that owns its data. Its methods are called on threads of the engine;
// those of one subscription one after another, those of different ones at the same time. A panic in Subscribe is the
// query's error.
type Source interface {
	// Subscribe begins to answer a query, in this call or later, and again on every change.
	Subscribe(query Query, to *Answerer)
	// Unsubscribe says that nobody wants the answers of a subscription any more.
	Unsubscribe(subscription uint64)
}

// Refresher is a [Source] that can give a fresh answer before the old one is due: a new certificate.
type Refresher interface {
	// Refresh asks for one.
	Refresh(subscription uint64)
}

// Answerer takes the answers of a [Source].
type Answerer struct {
	handle C.uintptr_t
}

// Answer is one answer, as JSON.
type Answer struct {
	Subscription uint64
	JSON         []byte
}

// Answer answers a subscription. An answer that can't be read is [ErrRefused]. One for a subscription that has ended is
// ignored.
func (a *Answerer) Answer(subscription uint64, json []byte) error {
	data, length := textOf(json)
	return check("answer", C.pc_source_answer(a.handle, C.uint64_t(subscription), data, length))
}

// AnswerAll answers several subscriptions in one step: no snapshot shows some of the answers without the others. If one
// can't be read, none is given.
func (a *Answerer) AnswerAll(answers []Answer) error {
	if len(answers) == 0 {
		return nil
	}
	// An array in C's memory that points to Go's: what it points to is pinned.
	array := (*C.proxycfg_answer)(C.calloc(C.size_t(len(answers)), C.sizeof_proxycfg_answer))
	defer C.free(unsafe.Pointer(array))
	var pinner runtime.Pinner
	defer pinner.Unpin()
	for i, place := 0, unsafe.Slice(array, len(answers)); i < len(answers); i++ {
		data, length := textOf(answers[i].JSON)
		if length > 0 {
			pinner.Pin(data)
		}
		place[i] = C.proxycfg_answer{subscription: C.uint64_t(answers[i].Subscription), json: C.proxycfg_str{data: data, len: length}}
	}
	return check("answer", C.pc_source_answer_batch(a.handle, array, C.size_t(len(answers))))
}

// Error says that a subscription can't be answered at present, and why. The last good answer stays in use.
func (a *Answerer) Error(subscription uint64, problem error) error {
	return a.fail(subscription, problem, 0)
}

// TokenInvalid says that the token of a subscription is no longer valid: the proxies that asked end, and their watches with
// them.
func (a *Answerer) TokenInvalid(subscription uint64, problem error) error {
	return a.fail(subscription, problem, 1)
}

func (a *Answerer) fail(subscription uint64, problem error, tokenInvalid C.int32_t) error {
	data, length := text(problem.Error())
	return check("answer", C.pc_source_error(a.handle, C.uint64_t(subscription), data, length, tokenInvalid))
}

// sourceHost is a source as the library calls it.
type sourceHost struct {
	source   Source
	answerer *Answerer
	log      *slog.Logger
}

func newSource(source Source, log *slog.Logger) (C.uintptr_t, error) {
	host := &sourceHost{source, &Answerer{}, log}
	handle, number := handleOf(host)
	r := C.pc_source_new(number)
	if err := check("new", r); err != nil {
		handle.Delete()
		return 0, err
	}
	// Before the engine that calls it.
	host.answerer.handle = r.handle
	return r.handle, nil
}

func hostOf(userData C.uintptr_t) *sourceHost {
	return cgo.Handle(userData).Value().(*sourceHost)
}

func (h *sourceHost) recovered(what string, failed func(error)) {
	if panicked := recover(); panicked != nil {
		h.log.Error("a source panicked", "in", what, "panic", panicked)
		if failed != nil {
			failed(fmt.Errorf("the source panicked: %v", panicked))
		}
	}
}

//export pcGoSubscribe
func pcGoSubscribe(userData C.uintptr_t, query *C.proxycfg_query) {
	host := hostOf(userData)
	asked := Query{
		Subscription: uint64(query.subscription),
		Kind:         QueryKind(query.kind),
		Token:        goString(query.token),
		JSON:         goBytes(unsafe.Pointer(query.json.data), query.json.len),
	}
	defer host.recovered("Subscribe", func(err error) { _ = host.answerer.Error(asked.Subscription, err) })
	host.source.Subscribe(asked, host.answerer)
}

//export pcGoUnsubscribe
func pcGoUnsubscribe(userData C.uintptr_t, subscription C.uint64_t) {
	host := hostOf(userData)
	defer host.recovered("Unsubscribe", nil)
	host.source.Unsubscribe(uint64(subscription))
}

//export pcGoRefresh
func pcGoRefresh(userData C.uintptr_t, subscription C.uint64_t) {
	host := hostOf(userData)
	defer host.recovered("Refresh", nil)
	if refresher, ok := host.source.(Refresher); ok {
		refresher.Refresh(uint64(subscription))
	}
}
