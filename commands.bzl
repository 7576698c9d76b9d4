"""Every command and the module with its `console_main`; setup.py, BUILD and the tests read this table."""

COMMANDS = {
    "bert-quickstart": "tasks.quickstart.run",
    "bert-train-vocab": "tasks.pretraining.train_vocab",
    "bert-create-pretraining-data": "tasks.pretraining.create_data",
    "bert-pretrain": "tasks.pretraining.run",
    "bert-adapt": "tasks.pretraining.adapt",
    "bert-classify": "tasks.classify.run",
    "bert-squad": "tasks.squad.run",
    "bert-swag": "tasks.swag.run",
    "bert-ner": "tasks.ner.run",
    "bert-embed": "tasks.embed.run",
    "bert-score-words": "tasks.score_words.run",
    "bert-features": "tasks.features.run",
    "bert-distill": "tasks.distill.run",
    "bert-convert": "tasks.convert.run",
    "bert-export": "export.run",
    "bert-serve": "export.local_server",
}
