"""bert-adapt: gives a pre-trained model the words of a domain, and pre-trains it further on the domain's text.

    bert-adapt --preset=base --input_file=domain.txt --num_new_tokens=2000 --output_dir=runs/law
    bert-adapt --preset=all_minilm_l6_v2_en --input_file='notes/*.txt' --input_format=document_per_file \\
        --time_budget_minutes=60 --learning_rate=2e-4 --output_dir=runs/notes
    bert-adapt --preset=base --input_file=domain.txt --num_new_tokens=0 --output_dir=runs/old_words

The new WordPieces are those that shorten the text most. Each starts as the mean of the pieces that it replaces; all
other ids and weights stay as they are. Then the masked LM is trained, and next sentences where the preset has that head
and the text has documents. A tenth of the documents, at most 256 KiB, is held out: tokens and masked-LM loss a
character are measured on them, before and after. The output directory gets preset/ (for --preset of every command),
report.html, metrics.json, new_tokens.tsv, and training/ with all that bert-pretrain writes. The same command continues
a run that was stopped.
"""

from tasks import flags
from tasks.pretraining.adaptation.settings import AdaptSettings


def adapt(settings: AdaptSettings) -> dict:
    """Adds new words to a preset and trains it further; keeps what an earlier call with the same settings finished.

    Returns:
        The content of `metrics.json`: that of `bert-pretrain`, and `new_tokens`, `vocabulary_size`,
        `tokens_per_character` and `masked_lm_loss_per_character`, the latter two and `masked_lm_loss` also with
        `before_`, for the preset as it was; `saved_token_share`, and `most_saved_token_share`, what one token for each
        word would save.

    Raises:
        InputError: a preset, text or directory that cannot be used, or a text without a piece to add.
        Preempted: SIGTERM came during training; the checkpoint is saved.
    """
    from tasks.pretraining.adaptation import stages

    return stages.run_stages(settings)


def main(settings: AdaptSettings) -> None:
    adapt(settings)


console_main = flags.console_main(main, AdaptSettings)

if __name__ == "__main__":
    console_main()
