"""The thread pool's machine code: LLVM IR that calls libc, so that no C compiler is needed.

A pool is an array of 64-bit words, which Python allocates and fills in (`pool.py`); the tables below name them.

A job is the programs `[0, programs)` of one kernel. They are distributed in equal ranges, one per thread, so that a
thread finds in its cache what it wrote in the launch before. A thread claims a quarter of what is left of its range
at a time (at least one program) and, when its own is empty, claims from the others' in the same way.

The word `job` holds an epoch in its upper half, counted up with each job, and in its lower half the bit `OPEN` and the
number of workers inside. A worker enters an open job by counting itself in; the caller closes the job when no program
is left to claim and waits until nobody is inside. A worker that wakes too late finds the job closed and delays nobody.
Workers wait for the next epoch by spinning, then yielding, then asleep on a futex.
"""

from __future__ import annotations

import platform
from string import Template

# Words of a pool. Each group of eight is one cache line.
POOL = {
    name: word
    for word, name in {
        0: "job", 1: "kernel", 2: "args",  # written once per job, read by all workers
        8: "busy",  # 1 while a caller uses the pool
        9: "started",  # number of worker threads that run
        10: "stop",  # 1 asks the workers to return
        11: "sleepers",  # workers that sleep, or are about to
        12: "free_core",  # the core that no worker is pinned to: the caller's
        13: "seen_core",  # where the caller was last time, -1 at first
        16: "threads",  # including the caller
        17: "pin",  # 1: workers are pinned
        18: "spin_ns", 19: "yield_ns",  # how long a worker spins, then yields, before it sleeps
        20: "omp_parallel", 21: "omp_thread",  # functions of an OpenMP runtime, or 0: our own workers
    }.items()
}  # fmt: skip
SLOTS = 24  # the word where the slots start, one per thread
SLOT = {
    "next": 0, "end": 1,  # programs that are left of this thread's range
    "core": 2,  # where the thread has to run
    "thread": 3,  # its pthread_t
    "pinned": 4,  # OpenMP only: the core it was pinned to, -1 at first
    "index": 5,
    "pool": 6,
}  # fmt: skip
SLOT_WORDS = 8

_PAUSE = {
    "x86_64": ("llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
}
_FUTEX = {"x86_64": 202, "aarch64": 98}  # system call numbers, asm/unistd.h
_SIGNALS_OF_FAULTS = (4, 5, 7, 8, 11)  # ILL, TRAP, BUS, FPE, SEGV, signal(7): workers leave the others to Python


def supported() -> bool:
    """Whether this system can run the pool: Linux on x86-64 or aarch64."""
    return platform.system() == "Linux" and platform.machine() in _FUTEX


def pool_ir(architecture: str) -> str:
    """LLVM IR of `tw_parallel` and `tw_stop` for Linux on `architecture`, x86_64 or aarch64."""
    pause, declare_pause = _PAUSE[architecture]
    words = {name.upper(): word for name, word in POOL.items()}
    words |= {f"SLOT_{name.upper()}": word for name, word in SLOT.items()}
    blocked = ~sum(1 << (signal - 1) for signal in _SIGNALS_OF_FAULTS)
    return Template(_IR).substitute(
        words, SLOTS=SLOTS, PAUSE=pause, DECLARE_PAUSE=declare_pause, FUTEX=_FUTEX[architecture], BLOCKED=blocked
    )


# The same functions with the caller alone, for a pool of one thread and where threads are not supported.
SERIAL_IR = """
define void @tw_parallel(ptr %pool, ptr %kernel, ptr %args, i64 %programs) {
entry:
  %some = icmp sgt i64 %programs, 0
  br i1 %some, label %alone, label %return
alone:
  call void %kernel(ptr %args, i64 0, i64 0, i64 %programs)
  br label %return
return:
  ret void
}
define i32 @tw_stop(ptr %pool) {
  ret i32 0
}
"""

_IR = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i64 @pthread_self()
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
$DECLARE_PAUSE

; Run kernel programs 0 .. programs - 1 on the threads of the pool and return when all are done.
; One program, a pool of one thread, or a pool in use: the caller runs them all.
define void @tw_parallel(ptr %pool, ptr %kernel, ptr %args, i64 %programs) {
entry:
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads_at
  %few_programs = icmp slt i64 %programs, 2
  %few_threads = icmp slt i64 %threads, 2
  %small = or i1 %few_programs, %few_threads
  br i1 %small, label %serial, label %acquire
acquire:
  %busy_at = getelementptr i64, ptr %pool, i64 $BUSY
  %acquired = cmpxchg ptr %busy_at, i64 0, i64 1 acquire monotonic
  %ours = extractvalue { i64, i1 } %acquired, 1
  br i1 %ours, label %shared, label %serial
serial:
  %some = icmp sgt i64 %programs, 0
  br i1 %some, label %alone, label %return
alone:
  call void %kernel(ptr %args, i64 0, i64 0, i64 %programs)
  br label %return
shared:
  call void @make_way(ptr %pool)
  call void @distribute(ptr %pool, ptr %kernel, ptr %args, i64 %programs)
  %omp_at = getelementptr i64, ptr %pool, i64 $OMP_PARALLEL
  %omp = load ptr, ptr %omp_at
  %own = icmp eq ptr %omp, null
  br i1 %own, label %own_workers, label %omp_workers
own_workers:
  call void @run_on_workers(ptr %pool, i64 %programs)
  br label %release
omp_workers:
  %team = trunc i64 %threads to i32
  call void %omp(ptr @omp_thread, ptr %pool, i32 %team, i32 0)
  br label %release
release:
  store atomic i64 0, ptr %busy_at release, align 8
  br label %return
return:
  ret void
}

; Stop the workers and wait for them; the next job starts them again. Returns 0, or 1 if the pool is in use.
define i32 @tw_stop(ptr %pool) {
entry:
  %busy_at = getelementptr i64, ptr %pool, i64 $BUSY
  %acquired = cmpxchg ptr %busy_at, i64 0, i64 1 acquire monotonic
  %ours = extractvalue { i64, i1 } %acquired, 1
  br i1 %ours, label %stop, label %in_use
in_use:
  ret i32 1
stop:
  %stop_at = getelementptr i64, ptr %pool, i64 $STOP
  store i64 1, ptr %stop_at
  call void @publish(ptr %pool, i64 0, i64 2147483647)
  %started_at = getelementptr i64, ptr %pool, i64 $STARTED
  %started = load i64, ptr %started_at
  br label %next
next:
  %i = phi i64 [ 1, %stop ], [ %i_next, %join ]
  %more = icmp sle i64 %i, %started
  br i1 %more, label %join, label %done
join:
  %slot = call ptr @slot(ptr %pool, i64 %i)
  %thread_at = getelementptr i64, ptr %slot, i64 $SLOT_THREAD
  %thread = load i64, ptr %thread_at
  %joined = call i32 @pthread_join(i64 %thread, ptr null)
  %i_next = add i64 %i, 1
  br label %next
done:
  store i64 0, ptr %started_at
  store i64 0, ptr %stop_at
  store atomic i64 0, ptr %busy_at release, align 8
  ret i32 0
}

define internal ptr @slot(ptr %pool, i64 %index) alwaysinline {
  %words = shl i64 %index, 3
  %word = add i64 %words, $SLOTS
  %slot = getelementptr i64, ptr %pool, i64 %word
  ret ptr %slot
}

; Deal the programs out: thread t gets programs * t / threads up to programs * (t + 1) / threads.
define internal void @distribute(ptr %pool, ptr %kernel, ptr %args, i64 %programs) {
entry:
  %kernel_at = getelementptr i64, ptr %pool, i64 $KERNEL
  store ptr %kernel, ptr %kernel_at
  %args_at = getelementptr i64, ptr %pool, i64 $ARGS
  store ptr %args, ptr %args_at
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads_at
  br label %next
next:
  %t = phi i64 [ 0, %entry ], [ %t_next, %next ]
  %begin = phi i64 [ 0, %entry ], [ %end, %next ]
  %t_next = add i64 %t, 1
  %share = mul i64 %programs, %t_next
  %end = udiv i64 %share, %threads
  %slot = call ptr @slot(ptr %pool, i64 %t)
  %next_at = getelementptr i64, ptr %slot, i64 $SLOT_NEXT
  store atomic i64 %begin, ptr %next_at monotonic, align 8
  %end_at = getelementptr i64, ptr %slot, i64 $SLOT_END
  store i64 %end, ptr %end_at
  %more = icmp slt i64 %t_next, %threads
  br i1 %more, label %next, label %done
done:
  ret void
}

; Claim and run programs as thread %thread, first from its own range, then from the others', until none is left.
define internal void @work(ptr %pool, i64 %thread) {
entry:
  %kernel_at = getelementptr i64, ptr %pool, i64 $KERNEL
  %kernel = load ptr, ptr %kernel_at
  %args_at = getelementptr i64, ptr %pool, i64 $ARGS
  %args = load ptr, ptr %args_at
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads_at
  br label %range
range:
  %visited = phi i64 [ 0, %entry ], [ %visited_next, %empty ]
  %sum = add i64 %thread, %visited
  %owner = urem i64 %sum, %threads
  %slot = call ptr @slot(ptr %pool, i64 %owner)
  %next_at = getelementptr i64, ptr %slot, i64 $SLOT_NEXT
  %end_at = getelementptr i64, ptr %slot, i64 $SLOT_END
  %end = load i64, ptr %end_at
  br label %claim
claim:
  %begin = load atomic i64, ptr %next_at monotonic, align 8
  %left = sub i64 %end, %begin
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %try, label %empty
try:
  %quarter = lshr i64 %left, 2
  %none = icmp eq i64 %quarter, 0
  %count = select i1 %none, i64 1, i64 %quarter
  %stop = add i64 %begin, %count
  %claimed = cmpxchg ptr %next_at, i64 %begin, i64 %stop monotonic monotonic
  %success = extractvalue { i64, i1 } %claimed, 1
  br i1 %success, label %run, label %claim
run:
  call void %kernel(ptr %args, i64 %thread, i64 %begin, i64 %stop)
  br label %claim
empty:
  %visited_next = add i64 %visited, 1
  %more = icmp slt i64 %visited_next, %threads
  br i1 %more, label %range, label %done
done:
  ret void
}

; Begin the next epoch with %open in the lower half of the job, and wake at most %wake sleepers.
define internal void @publish(ptr %pool, i64 %open, i64 %wake) {
entry:
  %old = load atomic i64, ptr %pool monotonic, align 8
  %high = and i64 %old, -4294967296
  %epoch = add i64 %high, 4294967296
  %new = or i64 %epoch, %open
  %before = atomicrmw xchg ptr %pool, i64 %new seq_cst
  %sleepers_at = getelementptr i64, ptr %pool, i64 $SLEEPERS
  %sleepers = load atomic i64, ptr %sleepers_at seq_cst, align 8
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %wake_up, label %done
wake_up:
  %epoch_at = getelementptr i8, ptr %pool, i64 4
  %woken = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %epoch_at, i64 129, i64 %wake)
  br label %done
done:
  ret void
}

define internal void @run_on_workers(ptr %pool, i64 %programs) {
entry:
  %started_at = getelementptr i64, ptr %pool, i64 $STARTED
  %started = load i64, ptr %started_at
  %fresh = icmp eq i64 %started, 0
  br i1 %fresh, label %start, label %open
start:
  call void @start_workers(ptr %pool)
  br label %open
open:
  %others = sub i64 %programs, 1
  %many = icmp sgt i64 %others, 2147483647
  %wake = select i1 %many, i64 2147483647, i64 %others
  call void @publish(ptr %pool, i64 2147483648, i64 %wake)
  call void @work(ptr %pool, i64 0)
  %closed = atomicrmw and ptr %pool, i64 -2147483649 acq_rel
  br label %check
check:
  %job = phi i64 [ %closed, %open ], [ %again, %wait ]
  %spins = phi i64 [ 0, %open ], [ %spins_next, %wait ]
  %inside = and i64 %job, 2147483647
  %nobody = icmp eq i64 %inside, 0
  br i1 %nobody, label %done, label %hold
hold:
  %spins_next = add i64 %spins, 1
  %long = icmp sgt i64 %spins_next, 2000
  br i1 %long, label %yield, label %pause
pause:
  call void @$PAUSE
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
wait:
  %again = load atomic i64, ptr %pool acquire, align 8
  br label %check
done:
  ret void
}

; Create the workers; where the system refuses one, those that exist do the work. They block all signals but faults.
define internal void @start_workers(ptr %pool) {
entry:
  %blocked = alloca [16 x i64]
  %before = alloca [16 x i64]
  br label %fill
fill:
  %w = phi i64 [ 0, %entry ], [ %w_next, %fill ]
  %word_at = getelementptr i64, ptr %blocked, i64 %w
  store i64 -1, ptr %word_at
  %w_next = add i64 %w, 1
  %filling = icmp slt i64 %w_next, 16
  br i1 %filling, label %fill, label %block
block:
  store i64 $BLOCKED, ptr %blocked
  %blocking = call i32 @pthread_sigmask(i32 2, ptr %blocked, ptr %before)
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads_at
  %pin_at = getelementptr i64, ptr %pool, i64 $PIN
  %pin = load i64, ptr %pin_at
  %pinned = icmp ne i64 %pin, 0
  %started_at = getelementptr i64, ptr %pool, i64 $STARTED
  br label %next
next:
  %t = phi i64 [ 1, %block ], [ %t_next, %count ]
  %more = icmp slt i64 %t, %threads
  br i1 %more, label %create, label %done
create:
  %slot = call ptr @slot(ptr %pool, i64 %t)
  %thread_at = getelementptr i64, ptr %slot, i64 $SLOT_THREAD
  %error = call i32 @pthread_create(ptr %thread_at, ptr null, ptr @worker, ptr %slot)
  %created = icmp eq i32 %error, 0
  br i1 %created, label %created_one, label %done
created_one:
  br i1 %pinned, label %place, label %count
place:
  %thread = load i64, ptr %thread_at
  %core_at = getelementptr i64, ptr %slot, i64 $SLOT_CORE
  %core = load i64, ptr %core_at
  call void @set_core(i64 %thread, i64 %core)
  br label %count
count:
  store i64 %t, ptr %started_at
  %t_next = add i64 %t, 1
  br label %next
done:
  %restored = call i32 @pthread_sigmask(i32 2, ptr %before, ptr null)
  ret void
}

define internal ptr @worker(ptr %slot) {
entry:
  %pool_at = getelementptr i64, ptr %slot, i64 $SLOT_POOL
  %pool = load ptr, ptr %pool_at
  %index_at = getelementptr i64, ptr %slot, i64 $SLOT_INDEX
  %index = load i64, ptr %index_at
  %spin_at = getelementptr i64, ptr %pool, i64 $SPIN_NS
  %spin_ns = load i64, ptr %spin_at
  %yield_at = getelementptr i64, ptr %pool, i64 $YIELD_NS
  %yield_ns = load i64, ptr %yield_at
  %awake_ns = add i64 %spin_ns, %yield_ns
  %stop_at = getelementptr i64, ptr %pool, i64 $STOP
  %sleepers_at = getelementptr i64, ptr %pool, i64 $SLEEPERS
  %epoch_at = getelementptr i8, ptr %pool, i64 4
  br label %idle

idle:  ; the jobs up to epoch %seen are behind us
  %seen = phi i32 [ 0, %entry ], [ %epoch, %finished ], [ %epoch, %not_stopping ], [ %seen, %slept ]
  %since = call i64 @now()
  br label %look
look:
  %looks = phi i64
    [ 0, %idle ], [ %looks_next, %pause ], [ %looks_next, %clock ], [ %looks_next, %yield ], [ 0, %enter ]
  %job = load atomic i64, ptr %pool acquire, align 8
  %job_high = lshr i64 %job, 32
  %epoch = trunc i64 %job_high to i32
  %same = icmp eq i32 %epoch, %seen
  br i1 %same, label %pause, label %news
pause:
  call void @$PAUSE
  %looks_next = add i64 %looks, 1
  %phase = and i64 %looks_next, 31
  %read_clock = icmp eq i64 %phase, 0
  br i1 %read_clock, label %clock, label %look
clock:
  %time = call i64 @now()
  %waited = sub i64 %time, %since
  %spinning = icmp slt i64 %waited, %spin_ns
  br i1 %spinning, label %look, label %tired
tired:
  %awake = icmp slt i64 %waited, %awake_ns
  br i1 %awake, label %yield, label %sleep
yield:
  %yielded = call i32 @sched_yield()
  br label %look
sleep:
  %sleepers = atomicrmw add ptr %sleepers_at, i64 1 seq_cst
  %woken = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %epoch_at, i64 128, i32 %seen, ptr null)
  br label %slept
slept:
  %sleepers_left = atomicrmw sub ptr %sleepers_at, i64 1 seq_cst
  br label %idle

news:
  %stop = load i64, ptr %stop_at
  %stopping = icmp ne i64 %stop, 0
  %open_bit = and i64 %job, 2147483648
  %closed = icmp eq i64 %open_bit, 0
  br i1 %stopping, label %return, label %not_stopping
not_stopping:
  br i1 %closed, label %idle, label %enter
enter:
  %job_inside = add i64 %job, 1
  %entered = cmpxchg ptr %pool, i64 %job, i64 %job_inside acq_rel monotonic
  %success = extractvalue { i64, i1 } %entered, 1
  br i1 %success, label %inside, label %look
inside:
  call void @work(ptr %pool, i64 %index)
  br label %finished
finished:
  %left = atomicrmw sub ptr %pool, i64 1 release
  br label %idle
return:
  ret ptr null
}

; What each thread of an OpenMP team runs. A worker pins itself if it is not yet where it should be.
define internal void @omp_thread(ptr %pool) {
entry:
  %function_at = getelementptr i64, ptr %pool, i64 $OMP_THREAD
  %function = load ptr, ptr %function_at
  %thread = call i32 %function()
  %index = zext i32 %thread to i64
  %pin_at = getelementptr i64, ptr %pool, i64 $PIN
  %pin = load i64, ptr %pin_at
  %pinned = icmp ne i64 %pin, 0
  %worker = icmp ne i64 %index, 0
  %placed = and i1 %pinned, %worker
  br i1 %placed, label %check, label %run
check:
  %self = call i64 @pthread_self()
  %slot = call ptr @slot(ptr %pool, i64 %index)
  %thread_at = getelementptr i64, ptr %slot, i64 $SLOT_THREAD
  %known = load i64, ptr %thread_at
  %core_at = getelementptr i64, ptr %slot, i64 $SLOT_CORE
  %core = load i64, ptr %core_at
  %pinned_at = getelementptr i64, ptr %slot, i64 $SLOT_PINNED
  %is_on = load i64, ptr %pinned_at
  %other_thread = icmp ne i64 %known, %self
  %other_core = icmp ne i64 %core, %is_on
  %move = or i1 %other_thread, %other_core
  br i1 %move, label %place, label %run
place:
  call void @set_core(i64 %self, i64 %core)
  store i64 %self, ptr %thread_at
  store i64 %core, ptr %pinned_at
  br label %run
run:
  call void @work(ptr %pool, i64 %index)
  ret void
}

; If the caller was moved to the core of a worker, give that worker the core that the caller left.
define internal void @make_way(ptr %pool) {
entry:
  %pin_at = getelementptr i64, ptr %pool, i64 $PIN
  %pin = load i64, ptr %pin_at
  %pinned = icmp ne i64 %pin, 0
  br i1 %pinned, label %where, label %done
where:
  %cpu = call i32 @sched_getcpu()
  %here = sext i32 %cpu to i64
  %seen_at = getelementptr i64, ptr %pool, i64 $SEEN_CORE
  %seen = load i64, ptr %seen_at
  %stayed = icmp eq i64 %here, %seen
  br i1 %stayed, label %done, label %moved
moved:
  store i64 %here, ptr %seen_at
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS
  %threads = load i64, ptr %threads_at
  br label %next
next:
  %t = phi i64 [ 1, %moved ], [ %t_next, %try ]
  %more = icmp slt i64 %t, %threads
  br i1 %more, label %try, label %done
try:
  %slot = call ptr @slot(ptr %pool, i64 %t)
  %core_at = getelementptr i64, ptr %slot, i64 $SLOT_CORE
  %core = load i64, ptr %core_at
  %taken = icmp eq i64 %core, %here
  %t_next = add i64 %t, 1
  br i1 %taken, label %swap, label %next
swap:
  %free_at = getelementptr i64, ptr %pool, i64 $FREE_CORE
  %free = load i64, ptr %free_at
  store i64 %free, ptr %core_at
  store i64 %here, ptr %free_at
  %started_at = getelementptr i64, ptr %pool, i64 $STARTED
  %started = load i64, ptr %started_at
  %exists = icmp sle i64 %t, %started
  br i1 %exists, label %place, label %done
place:
  %thread_at = getelementptr i64, ptr %slot, i64 $SLOT_THREAD
  %thread = load i64, ptr %thread_at
  call void @set_core(i64 %thread, i64 %free)
  br label %done
done:
  ret void
}

; Allow %thread the one core %core (below 1024: the size of a cpu_set_t). A refusal leaves it where it was.
define internal void @set_core(i64 %thread, i64 %core) {
  %set = alloca [16 x i64]
  store [16 x i64] zeroinitializer, ptr %set
  %word = lshr i64 %core, 6
  %bit = and i64 %core, 63
  %mask = shl i64 1, %bit
  %word_at = getelementptr i64, ptr %set, i64 %word
  store i64 %mask, ptr %word_at
  %error = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %set)
  ret void
}

; Nanoseconds of the monotonic clock.
define internal i64 @now() {
  %time = alloca [2 x i64]
  %error = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %ns = add i64 %whole, %rest
  ret i64 %ns
}
"""
