"""The shell around evaluation systems: what one declares, how it runs, and what it reports.

system    System, Summary, Metric, Decision: what a system declares
items     the input: typed items, each with its place
records   the results on disk: the only copy, for runs, merges and reports alike
audits    a model that notes what passes, and the facts of a run that its records do not have
report    a finished run: findings, Markdown, JSON, page
evaluate  one system on items from Python
"""
