"""The search itself: who proposes networks, who trains them, and when a training stops early."""
