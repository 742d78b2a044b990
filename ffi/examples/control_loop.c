// The complete loop of a host in C: write records, register a proxy, watch it, read snapshots and Envoy resources, change
// something, shut down.
//
//   cargo build -p proxycfg-ffi --release
//   cc -Iinclude ffi/examples/control_loop.c target/release/libproxycfg.a -lpthread -lm -ldl -lgcc_s -o control_loop

#include <proxycfg.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A text of a C string.
static proxycfg_str text(const char *string) {
    proxycfg_str made = {string, strlen(string)};
    return made;
}

// Ends the program if a call failed. A server would rather report the error and go on.
static void must(const char *what, proxycfg_result result, proxycfg_error *error) {
    if (result == PROXYCFG_RESULT_OK) return;
    proxycfg_str message = proxycfg_error_message(error);
    fprintf(stderr, "%s: %.*s\n", what, (int)message.len, message.data);
    proxycfg_error_free(error);
    exit(1);
}

// One part of a snapshot's JSON.
static void show(const proxycfg_snapshot *snapshot, const char *pointer) {
    proxycfg_error *error = NULL;
    proxycfg_str json;
    proxycfg_result result = proxycfg_snapshot_json(snapshot, text(pointer), &json, &error);
    if (result == PROXYCFG_RESULT_NOT_FOUND) {
        proxycfg_error_free(error);
        printf("%s: nothing\n", pointer);
        return;
    }
    must("json", result, error);
    printf("%s: %.*s\n", pointer, (int)json.len, json.data);
}

static void show_resources(const proxycfg_snapshot *snapshot, const char *type_url) {
    proxycfg_error *error = NULL;
    const proxycfg_resource *resources;
    size_t count;
    must("resources", proxycfg_snapshot_resources(snapshot, text(type_url), &resources, &count, &error), error);
    for (size_t i = 0; i < count; i++) {
        printf("%s %.*s: %zu bytes, version %.8s...\n", strrchr(type_url, '.') + 1, (int)resources[i].name.len,
               resources[i].name.data, resources[i].bytes.len, resources[i].version.data);
    }
}

// An instance of db and its sidecar, which is what others dial.
static const char *instance_of_db =
    "{\"Ops\": ["
    " {\"Register\": {\"Node\": \"node-1\", \"Address\": \"10.0.0.1\","
    "   \"Service\": {\"Service\": \"db\", \"Port\": 5432}}},"
    " {\"Register\": {\"Node\": \"node-1\", \"Address\": \"10.0.0.1\","
    "   \"Service\": {\"Kind\": \"connect-proxy\", \"Service\": \"db-sidecar-proxy\", \"Port\": 21000,"
    "     \"Proxy\": {\"DestinationServiceName\": \"db\", \"DestinationServiceID\": \"db\"}},"
    "   \"Checks\": [{\"CheckID\": \"listening\", \"ServiceID\": \"db-sidecar-proxy\", \"Status\": \"passing\"}]}}"
    "]}";

static const char *db_is_ill =
    "{\"Ops\": [{\"Check\": {\"Node\": \"node-1\", \"CheckID\": \"listening\", \"ServiceID\": \"db-sidecar-proxy\","
    " \"Status\": \"critical\"}}]}";

// The sidecar of web, which dials db.
static const char *sidecar_of_web =
    "{\"Kind\": \"connect-proxy\", \"Service\": \"web-sidecar-proxy\", \"Port\": 21000,"
    " \"Proxy\": {\"DestinationServiceName\": \"web\", \"LocalServicePort\": 8080,"
    "   \"Upstreams\": [{\"DestinationName\": \"db\", \"LocalBindPort\": 9191}]}}";

int main(void) {
    proxycfg_error *error = NULL;
    if (proxycfg_abi_version() != PROXYCFG_ABI_VERSION) {
        fprintf(stderr, "the library is another version than the header\n");
        return 1;
    }

    // An engine, with all defaults.
    proxycfg_engine *engine;
    must("engine", proxycfg_engine_new(NULL, &engine, &error), error);

    // Records: all of them or none.
    uint64_t index;
    must("apply", proxycfg_engine_apply(engine, text(instance_of_db), &index, &error), error);

    // A proxy.
    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.id.node = text("this-node");
    registration.definition = text(sidecar_of_web);
    must("register", proxycfg_register(engine, &registration, NULL, &error), error);

    // A watch through a queue, which suits a program with a loop of its own; proxycfg_watch calls a function instead.
    proxycfg_proxy_id id = {text("web-sidecar-proxy"), text("this-node"), {NULL, 0}};
    proxycfg_queue *queue;
    proxycfg_watch_handle *watch;
    must("queue", proxycfg_queue_new(engine, &queue, &error), error);
    must("watch", proxycfg_queue_watch(queue, &id, 1, &watch, &error), error);

    // The loop: the first snapshot, then one with the change.
    const proxycfg_snapshot *last = NULL;
    for (int rounds = 0; rounds < 2; rounds++) {
        proxycfg_delivery delivery;
        size_t count;
        must("poll", proxycfg_queue_poll(queue, &delivery, 1, 10000, &count, &error), error);
        if (count == 0 || delivery.snapshot == NULL) {
            fprintf(stderr, "no snapshot\n");
            return 1;
        }
        const char *endpoints = "/ConnectProxy/Upstreams/db/Endpoints";
        if (last == NULL) {
            printf("a snapshot of kind %d\n", (int)proxycfg_snapshot_kind(delivery.snapshot));
            show(delivery.snapshot, endpoints);
            show_resources(delivery.snapshot, "type.googleapis.com/envoy.config.cluster.v3.Cluster");
            show_resources(delivery.snapshot, "type.googleapis.com/envoy.config.listener.v3.Listener");
            must("apply", proxycfg_engine_apply(engine, text(db_is_ill), &index, &error), error);
        } else {
            proxycfg_text *diff;
            must("diff", proxycfg_snapshot_diff(last, delivery.snapshot, &diff, &error), error);
            proxycfg_str changes = proxycfg_text_content(diff);
            printf("changed: %.*s\n", (int)changes.len, changes.data);
            proxycfg_text_free(diff);
            show(delivery.snapshot, endpoints);
        }
        proxycfg_snapshot_release(last);
        last = delivery.snapshot;
    }
    proxycfg_snapshot_release(last);

    // The end. Freeing the engine would free watch and queue too.
    must("cancel", proxycfg_watch_cancel(watch, &error), error);
    proxycfg_queue_free(queue);
    must("deregister", proxycfg_deregister(engine, &id, text(""), &error), error);
    size_t stuck;
    must("close", proxycfg_engine_close(engine, 5000, &stuck, &error), error);
    proxycfg_engine_free(engine);
    printf("closed, %zu threads stuck\n", stuck);
    return 0;
}
