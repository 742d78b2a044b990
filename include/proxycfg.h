// proxycfg: the C ABI.
//
// The library keeps, for every registered proxy of a service mesh, one immutable snapshot of everything that the proxy
// needs, and hands it to whoever watches.
//
// Results. A function that can fail returns a proxycfg_result, and takes as its last argument a place for an error, which
// may be NULL. The place is set to NULL, and on failure to an error that says what is wrong; free it with
// proxycfg_error_free. Places for results are cleared before anything else and set only on success.
//
// Texts are a pointer and a length, in UTF-8. With a length of 0 the pointer may be NULL.
//
// Pointers. NULL is checked wherever it isn't allowed: PROXYCFG_RESULT_NULL_POINTER. Otherwise a pointer must be what its
// type says, and what it points to must not be changed by another thread during the call. Structs with a field `size`
// may grow: set it to sizeof of the struct, and all that isn't used to zero.
//
// Handles (engine, watch, queue, source, snapshot, error, text) point nowhere: they are numbers, never used again, that the
// library looks up. One that was freed, or is of another type, or is none, is recognised: PROXYCFG_RESULT_INVALID_HANDLE, or
// nothing where freeing. What a function gives of an object (a text of a snapshot, its resources) is memory, and not to be
// used after the object was freed. An object that is freed while another thread's call uses it lives until that call is over.
//
// Threads. Every function may be called from any thread at any time, also on the same object, unless it says otherwise.
// Functions of the host are called on threads of the library, never while a lock of the library is held: they may call
// every function of this library. Those that wait don't wait there: they return PROXYCFG_RESULT_ENGINE_THREAD, or leave
// the end to the destructor.
//
// Panics. A defect inside of the library ends as PROXYCFG_RESULT_PANIC; no exception or unwinding leaves it. Functions of
// the host must not throw, longjmp or end their thread: an exception ends the process, the others leave locks held.
//
// Processes. After fork() only the process that started an engine may use it.


#ifndef PROXYCFG_H
#define PROXYCFG_H

// Made by cbindgen from the crate in ffi/: change it there.

#include <stddef.h>
#include <stdint.h>

// The version of the ABI: the major number of the library times 1,000,000, the minor number times 1,000, and the patch.
#define PROXYCFG_ABI_VERSION 1000

// Flag of a registration: take the proxy over if another source has registered it.
#define PROXYCFG_REGISTER_OVERWRITE 1

// How a call ended. The numbers never change; later versions may add some.
enum proxycfg_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  PROXYCFG_RESULT_OK = 0,
  // A pointer that must not be NULL is.
  PROXYCFG_RESULT_NULL_POINTER = 1,
  // A text isn't UTF-8.
  PROXYCFG_RESULT_INVALID_UTF8 = 2,
  // An argument makes no sense: a struct of an unknown size, an unknown number, JSON that can't be read.
  PROXYCFG_RESULT_INVALID_ARGUMENT = 3,
  // A handle that was freed, or of another type. Nothing has been touched.
  PROXYCFG_RESULT_INVALID_HANDLE = 4,
  // Records or a registration that break a rule; the message lists all problems. Nothing has been changed.
  PROXYCFG_RESULT_REFUSED = 5,
  // There is no such thing.
  PROXYCFG_RESULT_NOT_FOUND = 6,
  // Another source has registered the proxy.
  PROXYCFG_RESULT_OTHER_SOURCE = 7,
  // The time is over.
  PROXYCFG_RESULT_TIMED_OUT = 8,
  // The engine or the watch has ended.
  PROXYCFG_RESULT_CLOSED = 9,
  // A wait on a thread of the engine, from within a callback, could never end: return from the callback first.
  PROXYCFG_RESULT_ENGINE_THREAD = 10,
  // A defect of the library was caught on its way to the host; the message says where.
  PROXYCFG_RESULT_PANIC = 11,
  // The operating system refused something.
  PROXYCFG_RESULT_SYSTEM = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_result proxycfg_result;
#else
typedef int32_t proxycfg_result;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a registration came to.
enum proxycfg_registered
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Nothing: the call failed.
  PROXYCFG_REGISTERED_NOTHING = 0,
  // The proxy is new, or begins anew: its kind or token changed, or it had ended.
  PROXYCFG_REGISTERED_CREATED = 1,
  // The change takes effect in place: watches keep the last snapshot until the new one is complete.
  PROXYCFG_REGISTERED_CHANGED = 2,
  // There was nothing to change.
  PROXYCFG_REGISTERED_UNCHANGED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_registered proxycfg_registered;
#else
typedef int32_t proxycfg_registered;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kind of a proxy.
enum proxycfg_proxy_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // None: of a NULL snapshot.
  PROXYCFG_PROXY_KIND_NONE = 0,
  // A sidecar.
  PROXYCFG_PROXY_KIND_CONNECT_PROXY = 1,
  // A mesh gateway.
  PROXYCFG_PROXY_KIND_MESH_GATEWAY = 2,
  // A terminating gateway.
  PROXYCFG_PROXY_KIND_TERMINATING_GATEWAY = 3,
  // An ingress gateway.
  PROXYCFG_PROXY_KIND_INGRESS_GATEWAY = 4,
  // An API gateway.
  PROXYCFG_PROXY_KIND_API_GATEWAY = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_proxy_kind proxycfg_proxy_kind;
#else
typedef int32_t proxycfg_proxy_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kinds of handle.
enum proxycfg_handle_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // `proxycfg_engine`.
  PROXYCFG_HANDLE_KIND_ENGINE = 1,
  // `proxycfg_watch_handle`.
  PROXYCFG_HANDLE_KIND_WATCH = 2,
  // `proxycfg_queue`.
  PROXYCFG_HANDLE_KIND_QUEUE = 3,
  // `proxycfg_source`.
  PROXYCFG_HANDLE_KIND_SOURCE = 4,
  // `proxycfg_snapshot`.
  PROXYCFG_HANDLE_KIND_SNAPSHOT = 5,
  // `proxycfg_error`.
  PROXYCFG_HANDLE_KIND_ERROR = 6,
  // `proxycfg_text`.
  PROXYCFG_HANDLE_KIND_TEXT = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_handle_kind proxycfg_handle_kind;
#else
typedef int32_t proxycfg_handle_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What holds for callers that no intention speaks of.
enum proxycfg_intention_default
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // They may call.
  PROXYCFG_INTENTION_DEFAULT_ALLOW = 0,
  // They may not.
  PROXYCFG_INTENTION_DEFAULT_DENY = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_intention_default proxycfg_intention_default;
#else
typedef int32_t proxycfg_intention_default;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How important a record is.
enum proxycfg_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Something has failed that shouldn't.
  PROXYCFG_LOG_LEVEL_ERROR = 1,
  // Something needs attention.
  PROXYCFG_LOG_LEVEL_WARN = 2,
  // What happens.
  PROXYCFG_LOG_LEVEL_INFO = 3,
  // Details.
  PROXYCFG_LOG_LEVEL_DEBUG = 4,
  // Everything.
  PROXYCFG_LOG_LEVEL_TRACE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_log_level proxycfg_log_level;
#else
typedef int32_t proxycfg_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kinds of query, and what their answers are as JSON.
enum proxycfg_query_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Trust roots: `{"ActiveRootID": ..., "TrustDomain": ..., "Roots": [...]}`, Consul's form.
  PROXYCFG_QUERY_KIND_CA_ROOTS = 0,
  // The certificate of a service, in Consul's form, with its private key.
  PROXYCFG_QUERY_KIND_LEAF = 1,
  // Who may call a service: a list of intentions.
  PROXYCFG_QUERY_KIND_INTENTIONS = 2,
  // Settings of the mesh: the config entry, or `null`.
  PROXYCFG_QUERY_KIND_MESH = 3,
  // All token providers: a list of config entries.
  PROXYCFG_QUERY_KIND_JWT_PROVIDERS = 4,
  // A compiled discovery chain.
  PROXYCFG_QUERY_KIND_CHAIN = 5,
  // The instances of a service: a list of `{"Node": ..., "ServiceID": ..., "Address": ..., "Port": ..., "Health":
  // "passing|warning|critical", "Weight": ...}`.
  PROXYCFG_QUERY_KIND_ENDPOINTS = 6,
  // Central configuration of a service, resolved: `{}` if there is none.
  PROXYCFG_QUERY_KIND_SERVICE_CONFIG = 7,
  // The registration of an instance: a service instance, or `null`.
  PROXYCFG_QUERY_KIND_SERVICE_RECORD = 8,
  // What of an instance's own checks a sidecar opens: `{"Paths": [...], "AgentAddress": ...}`, `{}` if nothing.
  PROXYCFG_QUERY_KIND_EXPOSED_CHECKS = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum proxycfg_query_kind proxycfg_query_kind;
#else
typedef int32_t proxycfg_query_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An engine: a store, a certificate authority, and the proxies whose snapshots it keeps current. Made by
// `proxycfg_engine_new`, freed with `proxycfg_engine_free`. Usable from any number of threads at the same time.
typedef struct proxycfg_engine proxycfg_engine;

// Why a call failed: a code and a message for people. Made by the library, freed by the host with
// `proxycfg_error_free`. Usable from any number of threads at the same time.
typedef struct proxycfg_error proxycfg_error;

// A completion queue. Made by `proxycfg_queue_new`, freed with `proxycfg_queue_free`. Usable from any number of threads at
// the same time.
typedef struct proxycfg_queue proxycfg_queue;

// A snapshot: everything that one proxy needs, at one store index. Immutable, counted by references, usable from any
// number of threads at the same time. It stays valid until the last reference is released, also after its engine is
// freed. Releasing more often than retaining takes a reference away from somebody else, for whom the handle is then
// invalid.
typedef struct proxycfg_snapshot proxycfg_snapshot;

// A source of the host. Made by `proxycfg_source_new`, given to one engine in its options, freed with
// `proxycfg_source_free`. Usable from any number of threads at the same time.
typedef struct proxycfg_source proxycfg_source;

// A text that the library made and the host frees, with `proxycfg_text_free`.
typedef struct proxycfg_text proxycfg_text;

// A watch on a proxy. Made by `proxycfg_watch` or `proxycfg_queue_watch`, freed with `proxycfg_watch_cancel`. Usable from
// any number of threads at the same time.
typedef struct proxycfg_watch_handle proxycfg_watch_handle;

// A text: UTF-8, with a length and without a terminating zero. With a length of 0 the pointer doesn't matter and may be
// NULL. A text that is passed to a function is read during the call only. One that a function gives belongs to the
// object that it was asked of.
typedef struct proxycfg_str {
  // The first byte.
  const char *data;
  // The number of bytes.
  size_t len;
} proxycfg_str;

// How an engine is set up. Set `size` to `sizeof(proxycfg_engine_options)` and everything else to zero: zero is the
// default of every field. The struct may grow in later versions.
typedef struct proxycfg_engine_options {
  // `sizeof(proxycfg_engine_options)`.
  size_t size;
  // The datacenter; empty means `dc1`.
  struct proxycfg_str datacenter;
  // A `proxycfg_intention_default`.
  int32_t intention_default;
  // Worker threads, at most 1,024; 0 means one a core.
  uint32_t workers;
  // Most threads that call into the host; callbacks that block hold one each. At most 65,536; 0 means 64.
  uint32_t callback_threads;
  // Most snapshots a second over all proxies; 0 means no limit.
  uint32_t updates_per_second;
  // Least time between two snapshots of one proxy, in milliseconds.
  uint64_t min_publish_interval_ms;
  // How long a query outlives the last proxy that wants it, in milliseconds; 0 means 10,000.
  uint64_t linger_ms;
  // A source of the host, which answers some kinds of query; NULL means none. A source serves one engine.
  const struct proxycfg_source *source;
  // The kinds of query that go to `source`: the sum of `1 << PROXYCFG_QUERY_KIND_...` of each.
  uint64_t source_kinds;
} proxycfg_engine_options;

// Which proxy. Two ids with different tokens are different proxies, which never share a snapshot.
typedef struct proxycfg_proxy_id {
  // The id of the proxy's service instance; must not be empty.
  struct proxycfg_str id;
  // The node that the instance is on; may be empty.
  struct proxycfg_str node;
  // The token that the proxy's data is fetched with; usually empty.
  struct proxycfg_str token;
} proxycfg_proxy_id;

// Called with a record: a `proxycfg_log_level`, the part of the library that it comes from, and a line of text. Both
// texts are lent for the call. Calls come one at a time, on a thread of their own. It must not throw or longjmp.
typedef void (*proxycfg_log_callback)(void *user_data,
                                      int32_t level,
                                      struct proxycfg_str target,
                                      struct proxycfg_str message);

// Frees the user data of a host. Called exactly once, after the last call of the function that the data belongs to; on
// any thread, and never while a lock of the library is held. It must not throw or longjmp.
typedef void (*proxycfg_destructor)(void *user_data);

// One new snapshot out of a queue.
typedef struct proxycfg_delivery {
  // The tag that the watch was made with.
  uint64_t tag;
  // The snapshot, to be released by the host. NULL means that the watch has ended, because the proxy's token is no
  // longer valid or the engine was closed; nothing more comes, and the watch is still to be cancelled.
  const struct proxycfg_snapshot *snapshot;
} proxycfg_delivery;

// A proxy to register. Set `size` to `sizeof(proxycfg_registration)` and what isn't needed to zero. The struct may grow
// in later versions.
typedef struct proxycfg_registration {
  // `sizeof(proxycfg_registration)`.
  size_t size;
  // Which proxy. If `id.id` is empty, it is the `ID` of the definition, or its `Service`.
  struct proxycfg_proxy_id id;
  // Who registers it: a name of the host's choice; empty means `host`. Only the same source can deregister it.
  struct proxycfg_str source;
  // The proxy's service instance as JSON, in the form of Consul's catalog: `{"Kind": "connect-proxy", "Service": ...,
  // "Port": ..., "Proxy": {...}}`. Empty means: follow the record of the store with the proxy's node and id.
  struct proxycfg_str definition;
  // A `proxycfg_proxy_kind`; needed without a definition, else 0 or the same.
  int32_t kind;
  // The sum of `PROXYCFG_REGISTER_...`.
  uint32_t flags;
} proxycfg_registration;

// Bytes with a length.
typedef struct proxycfg_bytes {
  // The first byte.
  const uint8_t *data;
  // The number of bytes.
  size_t len;
} proxycfg_bytes;

// One Envoy resource.
typedef struct proxycfg_resource {
  // Its name, unique within its type.
  struct proxycfg_str name;
  // Its version: the SHA-256 of the bytes in lower-case hexadecimal.
  struct proxycfg_str version;
  // The message, serialized: the value of an `Any` of the type. Those of a secret hold a private key.
  struct proxycfg_bytes bytes;
} proxycfg_resource;

// A query that the engine wants answered. Lent for the call of `subscribe`, with its texts. Later versions may append
// fields.
typedef struct proxycfg_query {
  // The size that the library knows this struct with.
  size_t size;
  // The number of the subscription, by which it is answered.
  uint64_t subscription;
  // A `proxycfg_query_kind`.
  int32_t kind;
  // The token that the data is fetched with: that of the proxies that want the answer.
  struct proxycfg_str token;
  // What is asked, as JSON: `{"Kind": "endpoints", "Service": "db", "Datacenter": "dc1"}`.
  struct proxycfg_str json;
} proxycfg_query;

// What a source does. Set `size` to `sizeof(proxycfg_source_functions)`. All functions are called on threads of the engine
// with no lock held, and may use every function of this library. Calls for one subscription come one after another, those
// for different ones at the same time; one that blocks holds up its own subscription and one thread. They must not throw
// or longjmp.
typedef struct proxycfg_source_functions {
  // `sizeof(proxycfg_source_functions)`.
  size_t size;
  // Begins to answer a query: with `proxycfg_source_answer` or `_error`, in this call or later, and again on every change.
  void (*subscribe)(void *user_data,
                    const struct proxycfg_query *query);
  // Nobody wants the answers of a subscription any more.
  void (*unsubscribe)(void *user_data,
                      uint64_t subscription);
  // A fresh answer is wanted now, where that makes sense: a new certificate. May be NULL.
  void (*refresh)(void *user_data,
                  uint64_t subscription);
} proxycfg_source_functions;

// One answer of a batch.
typedef struct proxycfg_answer {
  // The subscription.
  uint64_t subscription;
  // The answer, as JSON.
  struct proxycfg_str json;
} proxycfg_answer;

// Called with each new snapshot of a proxy.
//
// `snapshot` is lent for the call; to keep it, retain it. NULL means that the watch has ended, because the proxy's
// token is no longer valid or the engine is being closed; nothing more comes. Calls of one watch come one at a time, on threads of the engine, with no lock
// held; a call may use every function of this library. A slow callback gets only the newest snapshot. It must not
// throw or longjmp: a C++ exception ends the process, a longjmp leaves the library broken.
typedef void (*proxycfg_snapshot_callback)(void *user_data,
                                           const struct proxycfg_snapshot *snapshot);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the ABI that the library was built with. A host compares it with `PROXYCFG_ABI_VERSION` of the header
// that it was compiled with. Callable from any thread, at any time.
uint32_t proxycfg_abi_version(void);

// How many handles of a kind, a `proxycfg_handle_kind`, are live in this process: for finding leaks, since what a host
// forgets to free isn't lost to the library and so to no leak checker. A snapshot counts once, however many references
// there are. 0 for an unknown kind.
size_t proxycfg_live_handles(int32_t kind);

// Starts an engine.
//
// `options` may be NULL: all defaults. `engine` receives the handle.
proxycfg_result proxycfg_engine_new(const struct proxycfg_engine_options *options,
                                    struct proxycfg_engine **engine,
                                    struct proxycfg_error **error);

// Ends an engine: every watch ends, no callback is begun any more, sources are told that nobody wants their answers, and
// threads are waited for, at most `timeout_ms` milliseconds. The handle stays valid: what remains can be read, and
// watches and queues can be freed. Closing twice is fine. Called from a callback it doesn't wait.
//
// `stuck_threads` (may be NULL) receives the number of threads that were still busy at the end: callbacks that block.
proxycfg_result proxycfg_engine_close(const struct proxycfg_engine *engine,
                                      uint64_t timeout_ms,
                                      size_t *stuck_threads,
                                      struct proxycfg_error **error);

// Frees an engine, and with it all its watches and queues that haven't been freed: their handles become invalid, their
// destructors run. If it hasn't been closed it is closed first, waiting at most 10 seconds. Snapshots stay valid until
// they are released. Called from a callback it doesn't wait. NULL is fine; freeing one twice does nothing.
void proxycfg_engine_free(struct proxycfg_engine *engine);

// Writes into the store: a transaction of registrations, config entries and checks, all or nothing.
//
// `transaction` is JSON: `{"Ops": [{"Register": {...}}, {"Deregister": {...}}, {"Config": {...}}, {"DeleteConfig":
// {"Kind": ..., "Name": ...}}, {"Check": {...}}]}`, each in the form of Consul's catalog and config API.
// `store_index` (may be NULL) receives the store index afterwards; a transaction that changes nothing leaves it. A
// transaction with a mistake is `PROXYCFG_RESULT_REFUSED`, and the message lists all problems with their places.
proxycfg_result proxycfg_engine_apply(const struct proxycfg_engine *engine,
                                      struct proxycfg_str transaction,
                                      uint64_t *store_index,
                                      struct proxycfg_error **error);

// Waits until everything that can be computed from what was written up to a store index has reached the snapshots;
// proxies that wait for answers of a source, or are held back by a rate limit, are excepted. `timeout_ms` is the most
// that it waits, in milliseconds.
proxycfg_result proxycfg_engine_wait_index(const struct proxycfg_engine *engine,
                                           uint64_t store_index,
                                           uint64_t timeout_ms,
                                           struct proxycfg_error **error);

// Waits until a proxy has a snapshot, at most `timeout_ms` milliseconds. `snapshot` (may be NULL) receives it; release it
// with `proxycfg_snapshot_release`.
proxycfg_result proxycfg_engine_wait_ready(const struct proxycfg_engine *engine,
                                           const struct proxycfg_proxy_id *id,
                                           uint64_t timeout_ms,
                                           const struct proxycfg_snapshot **snapshot,
                                           struct proxycfg_error **error);

// The code of an error. NULL, or one that was freed, gives `PROXYCFG_RESULT_OK`.
proxycfg_result proxycfg_error_code(const struct proxycfg_error *error);

// The message of an error: what is wrong, where, and what to do. Valid as long as the error. NULL, or an error that
// was freed, gives an empty text.
struct proxycfg_str proxycfg_error_message(const struct proxycfg_error *error);

// Frees an error. NULL is fine; freeing one twice does nothing.
void proxycfg_error_free(struct proxycfg_error *error);

// Has a function called with what the library logs, up to `level` (a `proxycfg_log_level`), for the whole process. A second
// one replaces the first; NULL ends logging.
//
// `destructor` (may be NULL) is called with `user_data` exactly once, after the last call; if this function fails it isn't
// called. When this returns, the function before it has been called for the last time, unless this is called from it.
proxycfg_result proxycfg_log_set(proxycfg_log_callback callback,
                                 void *user_data,
                                 proxycfg_destructor destructor,
                                 int32_t level,
                                 struct proxycfg_error **error);

// The content of a text; valid until the text is freed. NULL, or a text that was freed, gives an empty one.
struct proxycfg_str proxycfg_text_content(const struct proxycfg_text *text);

// Frees a text. NULL is fine; freeing one twice does nothing.
void proxycfg_text_free(struct proxycfg_text *text);

// Makes a completion queue. `queue` receives the handle.
proxycfg_result proxycfg_queue_new(const struct proxycfg_engine *engine,
                                   struct proxycfg_queue **queue,
                                   struct proxycfg_error **error);

// Watches a proxy, registered or not, through a queue: its snapshot if it has one, and each new one, come out of
// `proxycfg_queue_poll` with `tag`. `watch` receives the handle.
proxycfg_result proxycfg_queue_watch(const struct proxycfg_queue *queue,
                                     const struct proxycfg_proxy_id *id,
                                     uint64_t tag,
                                     struct proxycfg_watch_handle **watch,
                                     struct proxycfg_error **error);

// Takes new snapshots out of a queue: at most `capacity`, each to be released by the host, into the array `deliveries`.
//
// With none there, waits for one, at most `timeout_ms` milliseconds; 0 doesn't wait. `count` receives how many were
// taken, 0 at the end of the time. Of each watch the newest snapshot comes, and none twice. Several threads may poll.
proxycfg_result proxycfg_queue_poll(const struct proxycfg_queue *queue,
                                    struct proxycfg_delivery *deliveries,
                                    size_t capacity,
                                    uint64_t timeout_ms,
                                    size_t *count,
                                    struct proxycfg_error **error);

// A file descriptor that is readable while the queue has something to deliver: for poll, epoll and the like. It belongs to
// the queue and is closed with it: don't read or close it; duplicate it if an event loop outlives the queue. Linux only.
proxycfg_result proxycfg_queue_fd(const struct proxycfg_queue *queue,
                                  int32_t *fd,
                                  struct proxycfg_error **error);

// Frees a queue, and cancels its watches that haven't been cancelled; their handles become invalid. Polls that wait return
// `PROXYCFG_RESULT_CLOSED`. NULL is fine; freeing one twice does nothing.
void proxycfg_queue_free(struct proxycfg_queue *queue);

// Registers a proxy, or changes its registration.
//
// `registered` (may be NULL) receives what it came to. A registration that breaks a rule is `PROXYCFG_RESULT_REFUSED`; a
// proxy of another source is `PROXYCFG_RESULT_OTHER_SOURCE`, unless the flags say to take it over.
proxycfg_result proxycfg_register(const struct proxycfg_engine *engine,
                                  const struct proxycfg_registration *registration,
                                  proxycfg_registered *registered,
                                  struct proxycfg_error **error);

// Removes a proxy that `source` (empty: `host`) has registered; else `PROXYCFG_RESULT_NOT_FOUND`. Watches stay and serve a
// later registration; after this returns, no snapshot of the removed registration is delivered.
proxycfg_result proxycfg_deregister(const struct proxycfg_engine *engine,
                                    const struct proxycfg_proxy_id *id,
                                    struct proxycfg_str source,
                                    struct proxycfg_error **error);

// The proxies of an engine as JSON: a list, sorted by node and id, of objects as `proxycfg_status` gives them.
//
// With a `source`, those that it has registered; with an empty one, all that are registered or watched. Free `proxies`
// with `proxycfg_text_free`.
proxycfg_result proxycfg_list(const struct proxycfg_engine *engine,
                              struct proxycfg_str source,
                              struct proxycfg_text **proxies,
                              struct proxycfg_error **error);

// The state of one proxy as JSON: `ID`, `Node`, `Kind`, `Source`, `Ready`, `WaitingFor` (a list of what it waits for or what
// is wrong: `Subject`, `Error`, `Blocks`), `Index` (the store index of its last snapshot), `Watchers`, and `Ended` or
// `Fault` with a reason if there is one. `PROXYCFG_RESULT_NOT_FOUND` if it is neither registered nor watched. Free
// `status` with `proxycfg_text_free`.
proxycfg_result proxycfg_status(const struct proxycfg_engine *engine,
                                const struct proxycfg_proxy_id *id,
                                struct proxycfg_text **status,
                                struct proxycfg_error **error);

// Adds a reference, to be released with `proxycfg_snapshot_release`, and returns the snapshot. NULL gives NULL, and so does
// a handle whose last reference was released.
const struct proxycfg_snapshot *proxycfg_snapshot_retain(const struct proxycfg_snapshot *snapshot);

// Gives a reference back. NULL is fine; releasing a handle whose last reference was released does nothing.
void proxycfg_snapshot_release(const struct proxycfg_snapshot *snapshot);

// The store index that every part of the snapshot was read at. NULL or an invalid handle gives 0.
uint64_t proxycfg_snapshot_index(const struct proxycfg_snapshot *snapshot);

// The proxy that the snapshot is for. The texts belong to the snapshot. NULL or an invalid handle gives an empty id.
struct proxycfg_proxy_id proxycfg_snapshot_proxy_id(const struct proxycfg_snapshot *snapshot);

// The kind of the proxy. NULL or an invalid handle gives `PROXYCFG_PROXY_KIND_NONE`.
proxycfg_proxy_kind proxycfg_snapshot_kind(const struct proxycfg_snapshot *snapshot);

// The snapshot as JSON, or the part that a JSON pointer names (`/Roots/TrustDomain`; empty: the whole). It is encoded once
// and belongs to the snapshot. Private keys are left out. `PROXYCFG_RESULT_NOT_FOUND` if there is nothing at the pointer.
proxycfg_result proxycfg_snapshot_json(const struct proxycfg_snapshot *snapshot,
                                       struct proxycfg_str pointer,
                                       struct proxycfg_str *json,
                                       struct proxycfg_error **error);

// What changed from one snapshot of a proxy to a newer one, as a JSON list of objects with `Change` (`header`, `roots`,
// `leaf`, `intentions`, `upstream-added`, `upstream-endpoints` ...), and `Upstream` and `Target` where the change is about
// one. The cost follows what changed. Free `diff` with `proxycfg_text_free`.
proxycfg_result proxycfg_snapshot_diff(const struct proxycfg_snapshot *older,
                                       const struct proxycfg_snapshot *newer,
                                       struct proxycfg_text **diff,
                                       struct proxycfg_error **error);

// The Envoy resources of one type, sorted by name. They are made once and belong to the snapshot.
//
// `type_url` is the type as xDS names it, such as `type.googleapis.com/envoy.config.cluster.v3.Cluster`; there are
// clusters, endpoints (`ClusterLoadAssignment`), listeners, routes (`RouteConfiguration`) and secrets. `resources` receives
// the first of an array of `count`.
proxycfg_result proxycfg_snapshot_resources(const struct proxycfg_snapshot *snapshot,
                                            struct proxycfg_str type_url,
                                            const struct proxycfg_resource **resources,
                                            size_t *count,
                                            struct proxycfg_error **error);

// What couldn't be turned into Envoy resources as it is configured, and what was done instead, as a JSON list of texts.
// Free `problems` with `proxycfg_text_free`.
proxycfg_result proxycfg_snapshot_problems(const struct proxycfg_snapshot *snapshot,
                                           struct proxycfg_text **problems,
                                           struct proxycfg_error **error);

// Makes a source of the host.
//
// `functions` is copied. `destructor` (may be NULL) is called with `user_data` exactly once, when the source and the engine
// that it serves have been freed and no function of it runs any more; if this function fails it isn't called.
proxycfg_result proxycfg_source_new(const struct proxycfg_source_functions *functions,
                                    void *user_data,
                                    proxycfg_destructor destructor,
                                    struct proxycfg_source **source,
                                    struct proxycfg_error **error);

// Answers a subscription. An answer that can't be read is `PROXYCFG_RESULT_REFUSED`, with all problems in the message; the
// last one stays. One for a subscription that has ended is ignored.
proxycfg_result proxycfg_source_answer(const struct proxycfg_source *source,
                                       uint64_t subscription,
                                       struct proxycfg_str json,
                                       struct proxycfg_error **error);

// Answers several subscriptions, in one step: no snapshot shows some of the answers without the others. If one can't be
// read, none is given.
proxycfg_result proxycfg_source_answer_batch(const struct proxycfg_source *source,
                                             const struct proxycfg_answer *answers,
                                             size_t count,
                                             struct proxycfg_error **error);

// Says that a subscription can't be answered at present, and why. The last good answer stays in use. With
// `token_invalid` other than 0 the proxies that asked end, and their watches with them: their token is no longer valid.
proxycfg_result proxycfg_source_error(const struct proxycfg_source *source,
                                      uint64_t subscription,
                                      struct proxycfg_str message,
                                      int32_t token_invalid,
                                      struct proxycfg_error **error);

// Frees a source. An engine that it serves goes on calling its functions, but can't be answered any more; free the engine
// first. NULL is fine; freeing one twice does nothing.
void proxycfg_source_free(struct proxycfg_source *source);

// Watches a proxy, registered or not: `callback` is called with its snapshot if it has one, and with each new one.
//
// `destructor` (may be NULL) is called with `user_data` exactly once, after the last call; if this function fails it isn't
// called. `watch` receives the handle before the first call.
proxycfg_result proxycfg_watch(const struct proxycfg_engine *engine,
                               const struct proxycfg_proxy_id *id,
                               proxycfg_snapshot_callback callback,
                               void *user_data,
                               proxycfg_destructor destructor,
                               struct proxycfg_watch_handle **watch,
                               struct proxycfg_error **error);

// Ends a watch and frees its handle.
//
// After this returns no call of its callback runs or will run, its destructor has run, and no queue delivers anything of
// it. Called from a callback of the engine it doesn't wait: the destructor marks the end then. A watch that was
// cancelled before, or whose engine was freed, is `PROXYCFG_RESULT_INVALID_HANDLE`.
proxycfg_result proxycfg_watch_cancel(struct proxycfg_watch_handle *watch,
                                      struct proxycfg_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PROXYCFG_H */
