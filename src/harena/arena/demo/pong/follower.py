"""Keeps its paddle level with the ball.

The observation is ball x, ball y, ball speed x, ball speed y, left paddle y, right paddle y, left score, right score;
the field is 1 by 1, and y grows downwards. The action is 0 up, 1 stay, 2 down. Player 0 is on the left.
"""


class Agent:
    def __init__(self, player_id):
        self.mine = 4 + player_id

    def act(self, observation):
        gap = observation[1] - observation[self.mine]
        return 1 if abs(gap) < 0.02 else 2 if gap > 0 else 0
