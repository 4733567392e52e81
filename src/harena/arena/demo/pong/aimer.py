"""Works out where the ball will arrive, and meets it with the edge of the paddle, so that it leaves steeply."""

EDGE = 0.07


class Agent:
    def __init__(self, player_id):
        self.me, self.plane = player_id, 0.95 if player_id else 0.05

    def act(self, observation):
        x, y, vx, vy = map(float, observation[:4])
        mine, theirs = float(observation[4 + self.me]), float(observation[5 - self.me])
        if (self.plane - x) * vx <= 0:
            target = 0.5
        else:
            arrives = bounced(y + vy * (self.plane - x) / vx)
            target = arrives + (EDGE if theirs > 0.5 else -EDGE)  # away from the other paddle
        gap = target - mine
        return 1 if abs(gap) < 0.016 else 2 if gap > 0 else 0


def bounced(y):
    y %= 2.0
    return 2.0 - y if y > 1.0 else y
