#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace host {

static constexpr std::size_t stack_bytes = 128 << 10;
static constexpr std::size_t guard_bytes = 4096;
// Stacks begin at different lines of a cache: as they are aligned alike, their tops would all share a few.
static constexpr std::size_t shift_bytes = 9 * 64, most_shift_bytes = 16 << 10;

void Fiber::allocate() {
    static std::size_t stacks = 0;
    void* const p = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, guard_bytes, PROT_NONE) != 0) {
        std::perror("a fiber's stack");
        std::exit(3);
    }
    stack_ = p;
    shift_ = stacks++ * shift_bytes % most_shift_bytes;
}

#if defined(__x86_64__)

extern "C" void peerwarp_switch_stack(void** from, void* to);
asm(R"(
.text
.globl peerwarp_switch_stack
.type peerwarp_switch_stack, @function
peerwarp_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size peerwarp_switch_stack, . - peerwarp_switch_stack
)");

void Fiber::start(void (*const entry)()) {
    if (!stack_) allocate();
    auto* top = reinterpret_cast<std::uintptr_t*>(static_cast<char*>(stack_) + stack_bytes - shift_);
    *--top = 0;  // where `entry` would return to: the stack is now as after a call
    *--top = reinterpret_cast<std::uintptr_t>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = 0;
    top_ = top;
}

void Fiber::switch_to(Fiber& from, Fiber& to) { peerwarp_switch_stack(&from.top_, to.top_); }

#else

void Fiber::start(void (*const entry)()) {
    if (!stack_) allocate();
    getcontext(&context_);
    context_.uc_stack.ss_sp = static_cast<char*>(stack_) + guard_bytes;
    context_.uc_stack.ss_size = stack_bytes - guard_bytes - shift_;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
}

void Fiber::switch_to(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

#endif

}  // namespace host
