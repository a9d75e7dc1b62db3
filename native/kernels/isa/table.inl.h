// The table of one ISA. Included last inside the ISA file's anonymous namespace.

constexpr KernelTable make_table(const char* isa, const char* integer_products = Dot::kName,
                                 const char* bf16_products = Bf16::kName,
                                 int64_t even_rows = kMaxRows + 1) {
  return {isa,           integer_products, bf16_products,     Vec::kName,
          even_rows,     pack_rows,        panel_product,     quantize_row,
          store_rows,    gated_rows,       add_weighted_rows, norm_rows,
          rope_rows,     attention_tile,   merge_attention,   router_rows,
          decode_panel,  transpose_panel,  low_rank_dot,      low_rank_add,
          low_rank_grad, save_gated,       gated_backward};
}
