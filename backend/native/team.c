/* Lists of operations in one call, by a team of threads that share out each of them.
 *
 * What is between two operations of a decode step, in Python or in waking a thread, takes as long as the shorter ones
 * of them. So a step comes as a list, and the threads of the team wait for one another by spinning.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "kernels.h"

#define MOST_THREADS 256
#define IDLE_SPINS 2000     /* some tens of microseconds without a list, then a thread sleeps */
#define MEETING_SPINS 300   /* some microseconds without another of the team, then any other may have the processor */

enum kind { NORM, GATE, ROTATE, STORE, ATTEND, LAY_OUT, STRIPS, TILES };

struct operation {
    int64_t kind;
    int64_t count; /* what it goes over: rows, parts, blocks of columns */
    int64_t least; /* of them for one thread */
    double number; /* the only argument that is not a whole number or a pointer */
    int64_t a[20]; /* the others, in order */
};

#define AT(i) ((void *)o->a[i])

static void compute(const struct operation *o, int64_t first, int64_t last) {
    const int64_t *a = o->a;
    float number = (float)o->number;
    switch ((enum kind)o->kind) {
    case NORM: norm_rows(AT(0), AT(1), AT(2), AT(3), a[4], number, (int)a[5], (int)a[6], first, last); break;
    case GATE: gate_rows(AT(0), AT(1), a[2], (int)a[3], (int)a[4], first, last); break;
    case ROTATE:
        rotate_rows(AT(0), a[1], AT(2), AT(3), AT(4), AT(5), a[6], a[7], a[8], number, (int)a[9], (int)a[10], first,
                    last);
        break;
    case STORE:
        store_rows(AT(0), AT(1), a[2], AT(3), a[4], AT(5), a[6], AT(7), a[8], a[9], (int)a[10], first, last);
        break;
    case ATTEND:
        attend_parts(AT(0), AT(1), a[2], AT(3), AT(4), a[5], AT(6), a[7], AT(8), AT(9), AT(10), a[11], a[12], a[13],
                     a[14], number, (int)a[15], AT(16), a[17], AT(18), first, last);
        break;
    case LAY_OUT: lay_out_rows(AT(0), AT(1), a[2], a[3], first, last); break;
    case STRIPS: multiply_strips(AT(0), AT(1), AT(2), AT(3), a[4], a[5], a[6], first, last); break;
    case TILES: multiply_tiles(AT(0), AT(1), AT(2), AT(3), a[4], a[5], a[6], (int)a[7], first, last); break;
    }
}

static struct {
    pthread_mutex_t turn; /* whose list it is */
    pthread_mutex_t lock; /* of `wake`, on which sleepers wait for another list */
    pthread_cond_t wake;
    pthread_t threads[MOST_THREADS];
    int wanted; /* 0 before there is a team */
    int size;   /* with the caller; fewer than wanted where the system gives no more */
    const struct operation *list;
    int64_t length; /* 0: go home */
    atomic_uint lists, arrived, passed;
} team = {.turn = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void pause_a_moment(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Return when all of the team have come here. */
static void meet(void) {
    unsigned passed = atomic_load(&team.passed);
    if (atomic_fetch_add(&team.arrived, 1) + 1 == (unsigned)team.size) {
        atomic_store(&team.arrived, 0);
        atomic_store(&team.passed, passed + 1);
        return;
    }
    for (int spins = 0; atomic_load(&team.passed) == passed; spins++) {
        pause_a_moment();
        if (spins > MEETING_SPINS) {
            sched_yield();
            spins = MEETING_SPINS;
        }
    }
}

/* Do the part of `me`. The next list may be there as soon as the last meeting is over. */
static void share(const struct operation *list, int64_t length, int me) {
    for (const struct operation *o = list; o < list + length; o++) {
        int64_t parts = o->count / o->least < team.size ? o->count / o->least : team.size;
        parts = parts > 1 ? parts : 1;
        if (me < parts)
            compute(o, o->count * me / parts, o->count * (me + 1) / parts);
        meet();
    }
}

static void *serve(void *number) {
    int me = (int)(intptr_t)number;
    for (unsigned seen = 0;; seen++) {
        for (int spins = 0; atomic_load(&team.lists) == seen && spins < IDLE_SPINS; spins++)
            pause_a_moment();
        pthread_mutex_lock(&team.lock);
        while (atomic_load(&team.lists) == seen)
            pthread_cond_wait(&team.wake, &team.lock);
        const struct operation *list = team.list;
        int64_t length = team.length;
        pthread_mutex_unlock(&team.lock);
        if (length == 0)
            return 0;
        share(list, length, me);
    }
}

static void publish(const struct operation *list, int64_t length) {
    pthread_mutex_lock(&team.lock);
    team.list = list;
    team.length = length;
    atomic_fetch_add(&team.lists, 1);
    pthread_cond_broadcast(&team.wake);
    pthread_mutex_unlock(&team.lock);
}

static void dismiss(void) {
    publish(0, 0);
    for (int other = 1; other < team.size; other++)
        pthread_join(team.threads[other], 0);
    team.wanted = 0;
}

static void forget(void) { /* in the child of a fork, where only the caller is left */
    pthread_mutex_init(&team.turn, 0);
    pthread_mutex_init(&team.lock, 0);
    pthread_cond_init(&team.wake, 0);
    team.wanted = 0;
}

static void hire(int threads) {
    static int registered;
    if (!registered)
        registered = pthread_atfork(0, 0, forget) == 0;
    atomic_store(&team.lists, 0);
    atomic_store(&team.arrived, 0);
    int size = 1;
    while (size < threads && size < MOST_THREADS &&
           pthread_create(&team.threads[size], 0, serve, (void *)(intptr_t)size) == 0)
        size++;
    team.wanted = threads;
    team.size = size;
}

/* Do one operation after another, each shared out among `threads`, or as many as the system gives. */
void run_operations(const struct operation *list, int64_t length, int threads) {
    if (threads < 2 || length < 1) {
        for (int64_t i = 0; i < length; i++)
            compute(list + i, 0, list[i].count);
        return;
    }
    pthread_mutex_lock(&team.turn);
    if (team.wanted != threads) {
        if (team.wanted)
            dismiss();
        hire(threads);
    }
    publish(list, length);
    share(list, length, 0);
    pthread_mutex_unlock(&team.turn);
}
