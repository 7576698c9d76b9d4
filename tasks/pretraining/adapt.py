"""bert-adapt: adds the words of a domain to a pre-trained model, and pre-trains it further on the domain's text.

    bert-adapt --preset=base --input_file=domain.txt --num_new_tokens=2000 --output_dir=runs/law
    bert-adapt --preset=all_minilm_l6_v2_en --input_file='notes/*.txt' --input_format=document_per_file \\
        --time_budget_minutes=60 --learning_rate=2e-4 --output_dir=runs/notes
    bert-adapt --preset=base --input_file=domain.txt --num_new_tokens=0 --output_dir=runs/old_words

The new WordPieces are those that shorten the text most. The embedding of each starts as the mean of the pieces that it
replaces; all other ids and weights stay as they are. Training then predicts masked tokens and, if the preset has that
head and the text has documents, next sentences. A tenth of the documents, at most 256 KiB, is held out to measure
tokens per character and masked-LM loss per character, before and after. The output directory gets preset/ (for --preset
of every command), report.html, metrics.json, new_tokens.tsv, and training/ with everything that bert-pretrain writes.
The same command resumes a stopped run.
"""

from tasks import flags
from tasks.pretraining.adaptation.settings import AdaptSettings


def adapt(settings: AdaptSettings) -> dict:
    """Adds new words to a preset and trains it further. Skips the stages that an earlier call finished.

    Returns:
        The content of `metrics.json`: that of `bert-pretrain`, and

        - `new_tokens`, the number of added pieces, and the new `vocabulary_size`;
        - `tokens_per_character` and `masked_lm_loss_per_character` of the held-out text. These two and
          `masked_lm_loss` also have the prefix `before_`, for the unchanged preset;
        - `saved_token_share`, and `most_saved_token_share`, which one token for each word would save.

    Raises:
        InputError: a preset, text or directory cannot be used, or no new piece would shorten the text.
        Preempted: SIGTERM came during training; the checkpoint is saved.
    """
    from tasks.pretraining.adaptation import stages

    return stages.run_stages(settings)


def main(settings: AdaptSettings) -> None:
    adapt(settings)


console_main = flags.console_main(main, AdaptSettings)

if __name__ == "__main__":
    console_main()
