// Package proxycfg keeps, for every registered proxy of a service mesh, one immutable and current snapshot of everything
// that the proxy needs: identity and certificate, trust roots, who may call it, and what it dials with discovery chains and
// endpoints. It hands the snapshot to whoever watches, as JSON and as Envoy resources.
//
// The work is done by the C library of this repository; see the package's files link_tree.go and link_external.go for how
// it is found.
//
// # The loop
//
// An [Engine] has a store, which [Engine.Apply] writes records into; proxies are registered with [Engine.Register]; and
// [Engine.Watch] gives a channel that holds the newest [Snapshot] of a proxy. See the examples.
//
// # Lifetimes
//
// Close an engine and the snapshots that you receive as soon as you are done with them. If you forget to, they are freed
// when the garbage collector finds them, which knows nothing of the memory that they hold. An engine stays alive as long
// as there are watches on it. Everything that a method returns is a copy of the caller's own. Methods on a closed engine or
// snapshot return [ErrClosed]; closing twice is fine.
//
// # Threads
//
// Everything may be used from any number of goroutines. A watch takes no goroutine and no thread: one goroutine for each
// engine receives snapshots in batches. Functions that the engine calls ([Source], [Engine.WatchFunc]) run on threads of the
// engine; a panic in one of them is recovered and logged.
package proxycfg
