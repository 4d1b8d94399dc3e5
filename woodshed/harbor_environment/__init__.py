"""Our boxes for users of Harbor: ``harbor run -e woodshed.harbor_environment.environment:WoodshedEnvironment``."""
