"""The catalogue: rule files in, the core's frozen objects out.

Reading order: document (YAML with positions), patterns, fields, signals and schema (what a file may say), validation
(pydantic's findings as RuleError), build (into core.rule), load (folders), lint, examples, report (`denpexd rules
check`).
"""
