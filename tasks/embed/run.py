"""Trains, evaluates and applies a model that embeds each text as one vector, for search and similarity.

    bert-embed --train_file=pairs.csv --output_dir=runs/search
    bert-embed --test_file=texts.csv --do_predict --output_dir=runs/search
    bert-embed --data_dir=stsb --preset=base --do_train --do_eval --output_dir=runs/stsb

Tables are TSV, CSV or Excel with a header, JSON Lines or Parquet. As in sentence-transformers, the order of the columns
counts, not their names: a text and its match, then any number of texts that do not match. A column named score or label
holds the similarity. With a single column, each text is its own match, encoded twice with different dropout masks
(SimCSE). A training file that ends in .txt is such a column: raw text, one sentence per line.

--do_eval prints Spearman's correlation if the dev file has scores. Otherwise, it prints how well each first text finds
its match among all others: recall, MRR and nDCG. --do_predict writes predictions.npy, the vectors of all texts of the
test file. The output directory also gets metrics.json, report.html, the trained model (model/), TensorBoard events and
checkpoints. The same command resumes a stopped run.
"""

from tasks.embed.task import Embed
from tasks.fine_tuning import command

console_main = command.console_main(Embed, __name__)

if __name__ == "__main__":
    console_main()
