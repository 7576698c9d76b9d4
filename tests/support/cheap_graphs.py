"""Makes graphs cheap to build, where each runs once or twice: what that leaves out took a fourth of all time.

Fresh processes, servers and C++ build theirs as users do.
"""

import sys


def begin() -> None:
    """Neither optimizes graphs from now on, nor walks the stack for each op; needs TensorFlow to be imported."""
    from tensorflow.python.util import tf_stack

    sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    stack = tf_stack.extract_stack(1)
    # TensorFlow reads a trace's lines when it needs them, which crashes once the code is gone. So it reads them now.
    str(stack), stack.last_user_frame(), stack.get_user_frames()
    tf_stack.extract_stack = lambda stacklevel=1: stack
