// Runs a threadgroup on the CPU. Every thread is a fiber of one operating-system thread; barriers and simdgroup operations are
// meeting points, where a fiber stops until all that must meet have come. Where they cannot meet, the launch ends with an error.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// The kernels are what is to be sanitized.
#pragma clang attribute push(__attribute__((no_sanitize("undefined"))), apply_to = function)

namespace harness {

constexpr uint32_t LANES = 32;
constexpr size_t STACK = 256 << 10;
constexpr unsigned char POISON = 0xff;  // floats become NaN, integers huge

// What the host hands over; the same struct is in harness.rs.
struct Launch {
    const void* table;
    void* scratch;
    uint32_t grid[2], threads, shared;
    uint32_t backwards;         // simdgroups and lanes in descending order
    uint32_t flush_subnormals;  // as Apple's chips do
    char* error;
    size_t error_size;
};

// A call in a kernel's text. As the last, defaulted parameter of a function it is where that function is called from.
struct Site {
    const char* file;
    unsigned line;

    static Site here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) { return {file, line}; }
    bool operator==(const Site& other) const {
        return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
    }
};

enum class Wait : uint8_t { Nothing, Simdgroup, Threadgroup, Done };

struct Fiber {
    jmp_buf place;
    bool started;
    Wait wait;
    Site site;  // the barrier or operation that it waits in
    uint32_t index, operations;
};

struct Range {
    void* start;
    size_t size;
};

// One threadgroup at a time.
class Group {
public:
    uint32_t grid[2] = {}, block[2] = {}, threads = 0;

    static Group& current() {
        static thread_local Group* group = nullptr;
        if (!group) group = new Group;  // one an operating-system thread, for good
        return *group;
    }

    const Fiber& fiber() const { return *running; }

    // Null, or what is wrong.
    const char* launch(const Launch& l, const std::function<void(unsigned char*)>& body) {
        make_room(l.threads);
        threads = l.threads;
        backwards = l.backwards != 0;
        shared.clear();
        // Exactly as large as the host says, so that a sanitizer sees what lies beyond.
        std::vector<unsigned char> dynamic(l.shared);
        if (l.shared) shared.push_back({dynamic.data(), dynamic.size()});
        kernel = [&] { body(dynamic.data()); };
        for (int d = 0; d < 2; d++) grid[d] = l.grid[d];
        uint64_t blocks = uint64_t(grid[0]) * grid[1];
        for (uint64_t b = 0; b < blocks; b++) {
            uint64_t at = backwards ? blocks - 1 - b : b;
            block[0] = uint32_t(at % grid[0]);
            block[1] = uint32_t(at / grid[0]);
            if (const char* wrong = run()) {
                // Fibers that stand somewhere in a kernel are left there, and begin anew.
                for (Fiber& fiber : fibers) fiber.started = false;
                return wrong;
            }
        }
        return nullptr;
    }

    void meet(Wait wait, Site site) {
        Fiber* own = running;
        own->wait = wait;
        own->site = site;
        if (!_setjmp(own->place)) _longjmp(scheduler, 1);
    }

    // A threadgroup variable: poisoned before a threadgroup starts.
    void use(void* start, size_t size) {
        for (const Range& range : shared)
            if (range.start == start) return;
        shared.push_back({start, size});
        memset(start, POISON, size);
    }

    // What a lane brings to a simdgroup operation. There are two places in turn: who reads one cannot be overtaken twice.
    unsigned char (*slots(uint32_t simdgroup, uint32_t turn))[LANES][16] { return &exchange[simdgroup][turn & 1]; }
    uint32_t& mask(uint32_t simdgroup, uint32_t turn) { return masks[simdgroup][turn & 1]; }

private:
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    size_t room = 0;
    bool backwards = false;
    Fiber* running = nullptr;
    jmp_buf scheduler;
    std::function<void()> kernel;
    std::vector<Range> shared;
    alignas(16) unsigned char exchange[32][2][LANES][16];
    uint32_t masks[32][2];

    char message[256];

    const char* differ(const char* what, Site a, Site b) {
        snprintf(message, sizeof message, "%s: %s:%u and %s:%u", what, a.file, a.line, b.file, b.line);
        return message;
    }

    const char* missing() {
        for (uint32_t i = 0; i < threads; i++) {
            if (fibers[i].wait != Wait::Threadgroup) continue;
            snprintf(message, sizeof message, "the threadgroup barrier at %s:%u was not reached by every thread",
                     fibers[i].site.file, fibers[i].site.line);
        }
        return message;
    }

    void make_room(uint32_t n) {
        if (n <= room) return;
        if (stacks) munmap(stacks, room * STACK);
        room = n;
        stacks = static_cast<char*>(
            mmap(nullptr, room * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (stacks == MAP_FAILED) abort();
        // The lowest page of every stack, so that one that overflows does not run into its neighbour.
        for (size_t i = 0; i < room; i++) mprotect(stacks + i * STACK, 4096, PROT_NONE);
        fibers.assign(room, Fiber());
    }

    // A fiber lives as long as its group: making one costs system calls.
    static void trampoline() {
        for (Group& group = current();;) {
            group.kernel();
            group.meet(Wait::Done, {"", 0});
        }
    }

    void resume(Fiber& fiber) {
        running = &fiber;
        fiber.wait = Wait::Nothing;
        if (_setjmp(scheduler)) return;
        if (fiber.started) _longjmp(fiber.place, 1);
        fiber.started = true;
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = stacks + fiber.index * STACK;
        context.uc_stack.ss_size = STACK;
        context.uc_link = nullptr;
        makecontext(&context, trampoline, 0);
        setcontext(&context);
    }

    const char* run() {
        for (const Range& range : shared) memset(range.start, POISON, range.size);
        for (uint32_t i = 0; i < threads; i++) {
            fibers[i].wait = Wait::Nothing;
            fibers[i].index = i;
            fibers[i].operations = 0;
        }
        uint32_t simdgroups = (threads + LANES - 1) / LANES;
        for (;;) {
            uint32_t done = 0, at_barrier = 0;
            for (uint32_t k = 0; k < simdgroups; k++)
                if (const char* wrong = run_simdgroup(backwards ? simdgroups - 1 - k : k, done, at_barrier)) return wrong;
            if (done == threads) return nullptr;
            if (at_barrier != threads) return missing();
            for (uint32_t i = 0; i < threads; i++)
                if (!(fibers[i].site == fibers[0].site))
                    return differ("threads wait at different threadgroup barriers", fibers[0].site, fibers[i].site);
        }
    }

    // Until each of its lanes waits at a threadgroup barrier or is done.
    const char* run_simdgroup(uint32_t simdgroup, uint32_t& done, uint32_t& at_barrier) {
        uint32_t first = simdgroup * LANES, lanes = threads - first < LANES ? threads - first : LANES;
        // Who waits at a barrier when this begins goes on; who comes to one while this runs stays.
        bool fresh = true;
        for (;;) {
            uint32_t meeting = 0, waiting = 0, ended = 0, turn = 0;
            Site site = {"", 0};
            for (uint32_t k = 0; k < lanes; k++) {
                uint32_t lane = backwards ? lanes - 1 - k : k;
                Fiber& fiber = fibers[first + lane];
                if (fiber.wait == Wait::Nothing || fiber.wait == Wait::Simdgroup ||
                    (fresh && fiber.wait == Wait::Threadgroup))
                    resume(fiber);
                waiting += fiber.wait == Wait::Threadgroup;
                ended += fiber.wait == Wait::Done;
                if (fiber.wait != Wait::Simdgroup) continue;
                if (meeting && !(fiber.site == site)) return differ("lanes of a simdgroup meet in different operations", site, fiber.site);
                site = fiber.site;
                meeting |= 1u << lane;
                turn = fiber.operations - 1;
            }
            fresh = false;
            if (!meeting) {
                done += ended;
                at_barrier += waiting;
                return nullptr;
            }
            if (waiting) return "lanes of a simdgroup wait at a barrier while others are in an operation";
            mask(simdgroup, turn) = meeting;
        }
    }

public:
    uint32_t next_turn() { return running->operations++; }
};

// The values that the lanes of a simdgroup brought to one operation.
template <class T>
struct Lanes {
    const unsigned char (*slots)[16];
    uint32_t mask;

    bool has(uint32_t lane) const { return mask >> lane & 1; }
    T operator[](uint32_t lane) const {
        T value;
        memcpy(&value, slots[lane], sizeof value);
        return value;
    }
};

inline uint32_t lane() { return Group::current().fiber().index % LANES; }

template <class T>
Lanes<T> exchange(const T& value, Site site) {
    static_assert(sizeof(T) <= 16, "larger than a register");
    Group& group = Group::current();
    uint32_t index = group.fiber().index, simdgroup = index / LANES, turn = group.next_turn();
    auto& slots = *group.slots(simdgroup, turn);
    memcpy(slots[index % LANES], &value, sizeof value);
    group.meet(Wait::Simdgroup, site);
    return {slots, group.mask(simdgroup, turn)};
}

// Storage of a threadgroup variable.
template <class T>
struct Storage {
    alignas(16) unsigned char bytes[sizeof(T)];
    T& of_this_threadgroup() {
        Group::current().use(bytes, sizeof bytes);
        return *reinterpret_cast<T*>(bytes);
    }
};

inline int launch(const Launch& l, const std::function<void(unsigned char*)>& body) {
    const char* wrong = nullptr;
#if defined(__x86_64__)
    // Flush to zero, and subnormals are zeros.
    unsigned mode = _mm_getcsr();
    _mm_setcsr((mode & ~0x8040u) | (l.flush_subnormals ? 0x8040u : 0u));
    wrong = Group::current().launch(l, body);
    _mm_setcsr(mode);
#else
    wrong = l.flush_subnormals ? "subnormals are flushed on x86-64 alone" : Group::current().launch(l, body);
#endif
    if (!wrong) return 0;
    snprintf(l.error, l.error_size, "%s (threadgroup %u, %u)", wrong, Group::current().block[0], Group::current().block[1]);
    return 1;
}

}  // namespace harness

#pragma clang attribute pop
