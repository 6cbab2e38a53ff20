// A stack of one's own, and switching between stacks on one OS thread.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace host {

class Fiber {
  public:
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Makes the fiber run `entry` on its own stack when it is next switched to. `entry` doesn't return.
    void start(void (*entry)());
    // Leaves `from`, which is running, for `to`.
    static void switch_to(Fiber& from, Fiber& to);

  private:
    void* stack_ = nullptr;  // none for the OS thread's own
    std::size_t shift_ = 0;  // bytes at its end that are left out

    void allocate();
#if defined(__x86_64__)
    void* top_ = nullptr;
#else
    ucontext_t context_;
#endif
};

}  // namespace host
