// The table of one ISA. Included last inside the ISA file's anonymous namespace.

constexpr KernelTable make_table(const char* isa) {
  return {isa,       panel_product, store_rows,     add_weighted_rows, silu_mul_rows,
          norm_rows, rope_rows,     attention_tile, merge_attention,   router_rows};
}
