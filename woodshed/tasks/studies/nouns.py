"""Module names of studies: common English nouns, each likely to be one token of a tokenizer trained on studies.

Handles of several tokens get recombined instead of copied by small policies; one-token handles do not.
"""

from __future__ import annotations

_TEXT = """
acorn amber anchor apple apron arrow aspen badge bagel basil basin beach beacon berry birch blade blanket bloom
board boat bottle bowl branch bread breeze brick bridge brook brush bucket butter button cabin cable cactus camel
candle canoe canvas canyon carpet castle cedar cellar chair chalk cherry chess circle clay cliff clock cloud clover
coal coast cobalt comet copper coral cotton cradle crane crater cream creek crown crystal curtain daisy dawn desert
diamond dolphin donkey door drum eagle ember engine falcon feather fence fern field flame flint flower flute forest
fossil fountain fox frost garden garnet ginger glacier glass globe glove grape grass gravel hammer harbor hazel
heron hill honey horse island ivory ivy jade jasmine jelly jungle kettle kite ladder lagoon lake lantern laurel leaf
ledge lemon lily lime linen lion lotus magnet mango maple marble meadow melon mint mirror moon moss mountain nectar
needle nest oasis ocean olive onion opal orange orchid otter oyster paddle palm panda paper parrot peach pearl
pebble pepper piano pillow pine planet plum pocket pond poppy prairie quartz quilt rabbit raven reef ribbon ridge
river robin rocket rose saddle sail salmon sand satin shadow shell shore silk silver slate snow spark spoon spruce
star stone storm straw stream sugar swan thistle thunder tiger timber torch tower trail tulip tunnel turnip valley
velvet violet walnut water willow window winter zebra
"""
NOUNS: tuple[str, ...] = tuple(_TEXT.split())
