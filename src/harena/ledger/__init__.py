"""Accounting: what each owner, run and agent used, and budgets that refuse before anything runs.

Does not know boxes: `harena.sandbox.border.accounting` measures them.
"""
