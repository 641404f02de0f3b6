from tests.engine.cpu.executors import repeatable as repeatable
