// What no ISA file may hold: a function that the linker merges with its namesakes elsewhere.
__attribute__((noinline)) inline int weak_function(int x) { return x + 1; }

int call_weak_function(int x);
int call_weak_function(int x) { return weak_function(x); }
