// The table of one ISA. Included last inside the ISA file's anonymous namespace.

constexpr KernelTable make_table(const char* isa) {
  return {isa,        pack_rows,      panel_product,     quantize_row,
          store_rows, gated_rows,     add_weighted_rows, norm_rows,
          rope_rows,  attention_tile, merge_attention,   router_rows};
}
