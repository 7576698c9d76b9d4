"""Names of a pre-training instance's features in TFRecord, ours and others'. Does not import TensorFlow."""

# Ours -> theirs: google-research/bert's name, then Model Garden's where it differs (`--use_v2_feature_names`).
FEATURE_NAMES = {
    "token_ids": ("input_ids", "input_word_ids"),
    "padding_mask": ("input_mask",),
    "segment_ids": ("segment_ids", "input_type_ids"),
    "mask_positions": ("masked_lm_positions",),
    "mask_ids": ("masked_lm_ids",),
    "mask_weights": ("masked_lm_weights",),
    "next_sentence_labels": ("next_sentence_labels",),
}
