"""Answers at once and goes on thinking in a thread and a child process while the other is to move."""

from __future__ import annotations

import os
import threading


class Agent:
    def __init__(self):
        self.thought = 0
        self.thinking = False

    def think(self):
        while True:
            self.thought += 1

    def act(self, observation):
        if not self.thinking:
            self.thinking = True
            threading.Thread(target=self.think, daemon=True).start()
            if os.fork() == 0:
                self.think()
        return next(column for column in (3, 2, 4, 1, 5, 0, 6) if observation[column] == 0)
