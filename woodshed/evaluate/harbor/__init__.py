"""Our boxes for users of Harbor: ``harbor run -e woodshed.evaluate.harbor.environment:WoodshedEnvironment``."""
