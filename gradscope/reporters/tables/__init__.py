"""Report → tables of cells, the one derivation that terminal, markdown and csv all render."""
