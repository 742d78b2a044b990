// Completion queues: batches, the descriptor, slow readers, ends.
#include "check.h"

#include <poll.h>

static const char *names[] = {"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"};
enum { PROXIES = 8 };

static int readable(int fd, int timeout_ms) {
    struct pollfd asked = {fd, POLLIN, 0};
    return poll(&asked, 1, timeout_ms) == 1 && (asked.revents & POLLIN);
}

// Polls until each of the watches has given a snapshot of at least this index.
static void gather(proxycfg_queue *queue, int watches, uint64_t index, size_t room) {
    uint64_t seen[PROXIES] = {0};
    for (int done = 0; done < watches;) {
        proxycfg_delivery got[PROXIES];
        size_t number;
        OK(proxycfg_queue_poll(queue, got, room, 60000, &number, &error));
        CHECK(number > 0 && number <= room);
        for (size_t i = 0; i < number; i++) {
            CHECK(got[i].tag < PROXIES && got[i].snapshot != NULL);
            uint64_t now = proxycfg_snapshot_index(got[i].snapshot);
            proxycfg_str id = proxycfg_snapshot_proxy_id(got[i].snapshot).id;
            CHECK(memcmp(id.data, names[got[i].tag], id.len) == 0);
            // Never back in time.
            CHECK(now >= seen[got[i].tag]);
            if (seen[got[i].tag] < index && now >= index) done++;
            seen[got[i].tag] = now;
            proxycfg_snapshot_release(got[i].snapshot);
        }
    }
}

static void batches_and_the_descriptor(void) {
    proxycfg_engine *engine = new_engine();
    proxycfg_queue *queue;
    int32_t fd, again;
    OK(proxycfg_queue_new(engine, &queue, &error));
    OK(proxycfg_queue_fd(queue, &fd, &error));
    OK(proxycfg_queue_fd(queue, &again, &error));
    CHECK(fd == again && !readable(fd, 0));
    proxycfg_watch_handle *watches[PROXIES];
    for (uint64_t i = 0; i < PROXIES; i++) {
        proxycfg_proxy_id id = proxy(names[i]);
        OK(proxycfg_queue_watch(queue, &id, i, &watches[i], &error));
        add_proxy(engine, names[i]);
    }
    CHECK(readable(fd, 60000));
    gather(queue, PROXIES, 1, 3);
    for (unsigned n = 1; n <= 20; n++) gather(queue, PROXIES, change(engine, n), 1 + n % PROXIES);
    // With nothing left it isn't readable.
    proxycfg_delivery got[PROXIES];
    size_t number;
    OK(proxycfg_queue_poll(queue, got, PROXIES, 0, &number, &error));
    CHECK(number == 0 && !readable(fd, 0));
    // Many changes: of each the newest, once.
    uint64_t index = 0;
    for (unsigned n = 100; n < 150; n++) index = change(engine, n);
    settle(engine, index);
    CHECK(readable(fd, 60000));
    OK(proxycfg_queue_poll(queue, got, PROXIES, 60000, &number, &error));
    CHECK(number == PROXIES && !readable(fd, 0));
    for (size_t i = 0; i < number; i++) {
        CHECK(proxycfg_snapshot_index(got[i].snapshot) == index);
        proxycfg_snapshot_release(got[i].snapshot);
    }
    // What was cancelled isn't delivered, also if it stood in line.
    index = change(engine, 1000);
    settle(engine, index);
    OK(proxycfg_watch_cancel(watches[0], &error));
    OK(proxycfg_watch_cancel(watches[1], &error));
    OK(proxycfg_queue_poll(queue, got, PROXIES, 60000, &number, &error));
    CHECK(number == PROXIES - 2);
    for (size_t i = 0; i < number; i++) {
        CHECK(got[i].tag >= 2);
        proxycfg_snapshot_release(got[i].snapshot);
    }
    // The end of the engine: each watch once more, with NULL, and the descriptor tells.
    OK(proxycfg_engine_close(engine, 10000, NULL, &error));
    CHECK(readable(fd, 60000));
    size_t ends = 0;
    while (ends < PROXIES - 2) {
        OK(proxycfg_queue_poll(queue, got, PROXIES, 60000, &number, &error));
        CHECK(number > 0);
        for (size_t i = 0; i < number; i++) CHECK(got[i].snapshot == NULL);
        ends += number;
    }
    OK(proxycfg_queue_poll(queue, got, PROXIES, 0, &number, &error));
    CHECK(number == 0);
    proxycfg_proxy_id id = proxy("late");
    ENDS(CLOSED, proxycfg_queue_watch(queue, &id, 0, &watches[0], &error));
    proxycfg_queue_free(queue);
    ENDS(INVALID_HANDLE, proxycfg_queue_poll(queue, got, 1, 0, &number, &error));
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel(watches[5], &error));
    proxycfg_engine_free(engine);
}

// A poll that waits ends with the queue.
static void *polls(void *argument) {
    proxycfg_delivery got;
    size_t number;
    proxycfg_result result = proxycfg_queue_poll(argument, &got, 1, 600000, &number, NULL);
    CHECK(result == PROXYCFG_RESULT_CLOSED || result == PROXYCFG_RESULT_INVALID_HANDLE);
    return NULL;
}

static void freeing_ends_polls_that_wait(void) {
    for (int with_engine = 0; with_engine < 2; with_engine++) {
        proxycfg_engine *engine = new_engine();
        proxycfg_queue *queue;
        OK(proxycfg_queue_new(engine, &queue, &error));
        pthread_t waiting[3];
        for (int i = 0; i < 3; i++) CHECK(pthread_create(&waiting[i], NULL, polls, queue) == 0);
        struct timespec moment = {0, 20000000};
        nanosleep(&moment, NULL);
        if (!with_engine) proxycfg_queue_free(queue);
        proxycfg_engine_free(engine);
        for (int i = 0; i < 3; i++) pthread_join(waiting[i], NULL);
    }
}

// Several threads poll one queue: each snapshot goes to one of them.
typedef struct reader {
    proxycfg_queue *queue;
    counter *got;
} reader;

static void *reads(void *argument) {
    reader *me = argument;
    for (;;) {
        proxycfg_delivery got[3];
        size_t number;
        proxycfg_result result = proxycfg_queue_poll(me->queue, got, 3, 600000, &number, NULL);
        if (result != PROXYCFG_RESULT_OK) return NULL;
        for (size_t i = 0; i < number; i++) {
            if (got[i].snapshot != NULL) count(me->got);
            proxycfg_snapshot_release(got[i].snapshot);
        }
    }
}

static void several_readers_share_the_work(void) {
    counter got = COUNTER;
    proxycfg_engine *engine = new_engine();
    proxycfg_queue *queue;
    OK(proxycfg_queue_new(engine, &queue, &error));
    reader each = {queue, &got};
    pthread_t readers[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&readers[i], NULL, reads, &each) == 0);
    for (uint64_t i = 0; i < PROXIES; i++) {
        proxycfg_proxy_id id = proxy(names[i]);
        proxycfg_watch_handle *watch;
        OK(proxycfg_queue_watch(queue, &id, i, &watch, &error));
        add_proxy(engine, names[i]);
    }
    wait_for(&got, PROXIES);
    long before = counted(&got);
    settle(engine, change(engine, 5));
    wait_for(&got, before + PROXIES);
    proxycfg_engine_free(engine);
    for (int i = 0; i < 3; i++) pthread_join(readers[i], NULL);
}

// Two watches of one proxy get the same snapshot, with its JSON encoded once.
static void watches_of_one_proxy_share_its_snapshots(void) {
    proxycfg_engine *engine = new_engine();
    add_proxy(engine, "p0");
    proxycfg_proxy_id id = proxy("p0");
    const proxycfg_snapshot *first, *second;
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &first, &error));
    settle(engine, change(engine, 1));
    proxycfg_snapshot_release(first);
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &first, &error));
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &second, &error));
    CHECK(first == second);
    proxycfg_str a, b;
    OK(proxycfg_snapshot_json(first, text(""), &a, &error));
    OK(proxycfg_snapshot_json(second, text(""), &b, &error));
    CHECK(a.data == b.data && a.len == b.len);
    OK(proxycfg_snapshot_json(second, text("/ConnectProxy/Upstreams/db"), &b, &error));
    CHECK(b.data > a.data && b.data + b.len < a.data + a.len);
    proxycfg_text *diff;
    OK(proxycfg_snapshot_diff(first, second, &diff, &error));
    CHECK(proxycfg_text_content(diff).len == 2);
    proxycfg_text_free(diff);
    proxycfg_snapshot_release(first);
    proxycfg_snapshot_release(second);
    proxycfg_engine_free(engine);
}

int main(void) {
    RUN(batches_and_the_descriptor);
    RUN(freeing_ends_polls_that_wait);
    RUN(several_readers_share_the_work);
    RUN(watches_of_one_proxy_share_its_snapshots);
    nothing_left();
    return 0;
}
