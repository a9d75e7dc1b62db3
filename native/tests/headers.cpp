// Stands for the tests when their common headers are compiled.
int main() {}
