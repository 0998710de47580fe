"""Flash-LoRA-Attention: attention over a paged base cache with a low-rank value term."""
