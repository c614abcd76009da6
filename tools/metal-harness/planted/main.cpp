// Runs one planted kernel on 64 threads, in either order: planted LIBRARY KERNEL reverse|sums. Ends with 0 where the result is right, 3 where it
// is wrong, 4 where the harness refuses; a sanitizer ends it with its own number.
#include <fibers.hpp>
#include <dlfcn.h>

#include <string>

struct Head {
    uint32_t* numbers;
    uint32_t* out;
};

int main(int, char** arguments) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    std::string name = std::string("mtl_") + arguments[2];
    auto* kernel = reinterpret_cast<int (*)(const harness::Launch*)>(dlsym(library, name.c_str()));
    if (!kernel) return 2;
    for (uint32_t backwards : {0, 1}) {
        std::vector<uint32_t> numbers(64), out(64);
        for (uint32_t i = 0; i < 64; i++) numbers[i] = 100 + i;
        Head head = {numbers.data(), out.data()};
        char error[256] = "";
        harness::Launch launch = {&head, nullptr, {1, 1}, 64, 256, backwards, 0, error, sizeof error};
        if (kernel(&launch)) {
            printf("refused: %s\n", error);
            return 4;
        }
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t sum = i < 32 ? 32 * 100 + 31 * 16 : 32 * 132 + 31 * 16;
            uint32_t want = arguments[3] == std::string("sums") ? sum : 163 - i;
            if (out[i] == want) continue;
            printf("out[%u] is %u, must be %u\n", i, out[i], want);
            return 3;
        }
    }
    printf("right\n");
    return 0;
}
