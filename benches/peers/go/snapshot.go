package main

import (
	"fmt"

	"github.com/mitchellh/copystructure"
)

// Snapshot is a proxy's configuration in the usual form of Go programs: plain structs, maps and slices, which belong to
// whoever holds them, and so are copied for every reader.
type Snapshot struct {
	ProxyID   string
	Service   string
	Address   string
	Port      int
	Meta      map[string]string
	Upstreams map[string]*Upstream
}

// Upstream is what a proxy knows of a service that it dials.
type Upstream struct {
	Name      string
	Protocol  string
	Targets   map[string]*Target
	Config    map[string]any
	LocalPort int
}

// Target is a group of endpoints.
type Target struct {
	ID        string
	SNI       string
	Endpoints []Endpoint
}

// Endpoint is an instance with its node and checks.
type Endpoint struct {
	Node    *Node
	Service *Service
	Checks  []*Check
}

// Node is where an instance runs.
type Node struct {
	ID, Node, Address, Datacenter string
	TaggedAddresses, Meta         map[string]string
}

// Service is an instance.
type Service struct {
	Kind, ID, Service, Address string
	Tags                       []string
	Meta                       map[string]string
	Port                       int
	Passing, Warning           int
}

// Check is a health check.
type Check struct {
	Node, CheckID, Name, Status, Output, ServiceID string
}

func makeSnapshot(s size) *Snapshot {
	snapshot := &Snapshot{ProxyID: "web-proxy", Service: "web", Address: "10.0.0.1", Port: 21000,
		Meta: map[string]string{"version": "1"}, Upstreams: map[string]*Upstream{}}
	for u := range s.upstreams {
		name := fmt.Sprintf("s%d", u)
		target := &Target{ID: name + ".default.dc1", SNI: name + ".default.dc1.internal"}
		for e := range s.endpoints {
			node := fmt.Sprintf("node-%d", e)
			id := fmt.Sprintf("%s-%d", name, e)
			target.Endpoints = append(target.Endpoints, Endpoint{
				Node:    &Node{ID: "", Node: node, Address: fmt.Sprintf("10.0.%d.%d", u, e), Datacenter: "dc1"},
				Service: &Service{Kind: "connect-proxy", ID: id, Service: name, Port: 21000, Passing: 1, Warning: 1},
				Checks:  []*Check{{Node: node, CheckID: "alive", Name: "alive", Status: "passing", ServiceID: id}},
			})
		}
		snapshot.Upstreams[name] = &Upstream{Name: name, Protocol: "tcp", Targets: map[string]*Target{target.ID: target},
			Config: map[string]any{"connect_timeout_ms": 5000}, LocalPort: 9000 + u}
	}
	return snapshot
}

func (s *Snapshot) endpoints() int {
	n := 0
	for _, upstream := range s.Upstreams {
		for _, target := range upstream.Targets {
			n += len(target.Endpoints)
		}
	}
	return n
}

// DeepCopy copies as a generator of such functions would write it.
func (s *Snapshot) DeepCopy() *Snapshot {
	out := *s
	out.Meta = copyMap(s.Meta)
	out.Upstreams = make(map[string]*Upstream, len(s.Upstreams))
	for name, upstream := range s.Upstreams {
		out.Upstreams[name] = upstream.DeepCopy()
	}
	return &out
}

// DeepCopy copies an upstream.
func (u *Upstream) DeepCopy() *Upstream {
	out := *u
	out.Config = make(map[string]any, len(u.Config))
	for key, value := range u.Config {
		out.Config[key] = value
	}
	out.Targets = make(map[string]*Target, len(u.Targets))
	for id, target := range u.Targets {
		out.Targets[id] = target.DeepCopy()
	}
	return &out
}

// DeepCopy copies a target.
func (t *Target) DeepCopy() *Target {
	out := *t
	out.Endpoints = make([]Endpoint, len(t.Endpoints))
	for i, endpoint := range t.Endpoints {
		out.Endpoints[i] = endpoint.DeepCopy()
	}
	return &out
}

// DeepCopy copies an endpoint.
func (e Endpoint) DeepCopy() Endpoint {
	node, service := *e.Node, *e.Service
	node.TaggedAddresses, node.Meta = copyMap(node.TaggedAddresses), copyMap(node.Meta)
	service.Tags = append([]string(nil), service.Tags...)
	service.Meta = copyMap(service.Meta)
	checks := make([]*Check, len(e.Checks))
	for i, check := range e.Checks {
		copied := *check
		checks[i] = &copied
	}
	return Endpoint{Node: &node, Service: &service, Checks: checks}
}

func copyMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}

// handle hands a snapshot to a watcher.
func handle(s size) {
	snapshot := makeSnapshot(s)
	var copied any
	took := each(func(int) { copied = must(copystructure.Copy(snapshot)) })
	check(copied.(*Snapshot).endpoints() == s.upstreams*s.endpoints, "copied")
	print("copystructure", "time", float64(took.Nanoseconds()), "ns")
	took = each(func(int) { copied = snapshot.DeepCopy() })
	check(copied.(*Snapshot).endpoints() == s.upstreams*s.endpoints, "copied")
	print("generated copy", "time", float64(took.Nanoseconds()), "ns")
}

// nextSnapshot makes the snapshot after one endpoint's check has changed.
func nextSnapshot(s size) {
	snapshot := makeSnapshot(s)
	next := snapshot
	took := each(func(i int) {
		next = next.DeepCopy()
		status := "passing"
		if i%2 == 0 {
			status = "critical"
		}
		next.Upstreams["s0"].Targets["s0.default.dc1"].Endpoints[0].Checks[0].Status = status
	})
	check(next != snapshot && next.endpoints() == s.upstreams*s.endpoints, "copied")
	print("generated copy", "time", float64(took.Nanoseconds())/1e3, "us")
}
