package proxycfg

// #include "capi.h"
import "C"

import "runtime"

// ProxyID says which proxy. Two ids with different tokens are different proxies, which never share a snapshot.
type ProxyID struct {
	// ID is the id of the proxy's service instance.
	ID string
	// Node is the node that the instance is on; it may be empty.
	Node string
	// Token is what the proxy's data is fetched with; usually empty.
	Token string
}

// String is the node and the id, without the token.
func (p ProxyID) String() string { return p.Node + "/" + p.ID }

// Kind is the kind of a proxy.
type Kind int32

// The kinds.
const (
	ConnectProxy       Kind = C.PROXYCFG_PROXY_KIND_CONNECT_PROXY
	MeshGateway        Kind = C.PROXYCFG_PROXY_KIND_MESH_GATEWAY
	TerminatingGateway Kind = C.PROXYCFG_PROXY_KIND_TERMINATING_GATEWAY
	IngressGateway     Kind = C.PROXYCFG_PROXY_KIND_INGRESS_GATEWAY
	APIGateway         Kind = C.PROXYCFG_PROXY_KIND_API_GATEWAY
)

// Registration is a proxy to register.
type Registration struct {
	// ID says which proxy. If ID.ID is empty, it is the ID of the definition, or its Service.
	ID ProxyID
	// Source says who registers it: a name of your choice, "host" if empty. Only the same source can deregister it.
	Source string
	// Definition is the proxy's service instance as JSON, in the form of Consul's catalog. Empty means: follow the record
	// of the store with the proxy's node and id.
	Definition []byte
	// Kind is needed without a definition.
	Kind Kind
	// Overwrite takes the proxy over if another source has registered it.
	Overwrite bool
}

// Registered says what a registration came to.
type Registered int32

// What a registration can come to.
const (
	// Created means that the proxy is new, or begins anew.
	Created Registered = C.PROXYCFG_REGISTERED_CREATED
	// Changed means that the change takes effect in place: watches keep the last snapshot until the new one is complete.
	Changed Registered = C.PROXYCFG_REGISTERED_CHANGED
	// Unchanged means that there was nothing to change.
	Unchanged Registered = C.PROXYCFG_REGISTERED_UNCHANGED
)

// Register registers a proxy, or changes its registration.
func (e *Engine) Register(registration Registration) (Registered, error) {
	defer runtime.KeepAlive(e)
	id, idLen := text(registration.ID.ID)
	node, nodeLen := text(registration.ID.Node)
	token, tokenLen := text(registration.ID.Token)
	source, sourceLen := text(registration.Source)
	definition, definitionLen := textOf(registration.Definition)
	var flags C.uint32_t
	if registration.Overwrite {
		flags |= C.PROXYCFG_REGISTER_OVERWRITE
	}
	r := C.pc_register(e.core.handle, id, idLen, node, nodeLen, token, tokenLen, source, sourceLen, definition, definitionLen,
		C.int32_t(registration.Kind), flags)
	return Registered(r.number), check("register", r)
}

// Deregister removes a proxy that source ("host" if empty) has registered; else the error is [ErrNotFound]. Watches stay and
// serve a later registration.
func (e *Engine) Deregister(proxy ProxyID, source string) error {
	defer runtime.KeepAlive(e)
	id, idLen := text(proxy.ID)
	node, nodeLen := text(proxy.Node)
	token, tokenLen := text(proxy.Token)
	from, fromLen := text(source)
	return check("deregister", C.pc_deregister(e.core.handle, id, idLen, node, nodeLen, token, tokenLen, from, fromLen))
}

// Proxy is the state of a proxy.
type Proxy struct {
	ID   string
	Node string
	// Kind is as in records: "connect-proxy" and the like; empty if it is only watched.
	Kind string
	// Source is who registered it; empty if it is only watched.
	Source string
	// Ready says whether it has a snapshot that is current.
	Ready bool
	// WaitingFor is what it waits for, and what is wrong.
	WaitingFor []Issue
	// Index is the store index of its last snapshot.
	Index uint64
	// Watchers is the number of watches on it.
	Watchers int
	// Ended says why it ended by itself.
	Ended string
	// Fault is the text of the last defect in its state.
	Fault string
}

// Issue is something that a proxy waits for, or that is wrong.
type Issue struct {
	// Subject is what it is about, in words.
	Subject string
	// Error is the last error; empty while the first answer is awaited.
	Error string
	// Blocks says whether the proxy has no snapshot, or serves an older one, until this is solved.
	Blocks bool
}

func (i Issue) String() string {
	if i.Error == "" {
		return i.Subject
	}
	return i.Subject + ": " + i.Error
}

// Proxies lists the proxies that a source has registered, or all that are registered or watched if source is empty; sorted
// by node and id.
func (e *Engine) Proxies(source string) ([]Proxy, error) {
	defer runtime.KeepAlive(e)
	from, fromLen := text(source)
	r := C.pc_list(e.core.handle, from, fromLen)
	if err := check("proxies", r); err != nil {
		return nil, err
	}
	return decode[[]Proxy]("proxies", r.text)
}

// Status is the state of one proxy; [ErrNotFound] if it is neither registered nor watched.
func (e *Engine) Status(proxy ProxyID) (Proxy, error) {
	defer runtime.KeepAlive(e)
	id, idLen := text(proxy.ID)
	node, nodeLen := text(proxy.Node)
	token, tokenLen := text(proxy.Token)
	r := C.pc_status(e.core.handle, id, idLen, node, nodeLen, token, tokenLen)
	if err := check("status", r); err != nil {
		return Proxy{}, err
	}
	return decode[Proxy]("status", r.text)
}
