"""A small Node project on disk, as somebody would have it: CommonJS, node:test, nothing to install."""

from __future__ import annotations

from pathlib import Path

PACKAGE = """{
  "name": "intervals", "version": "1.2.0", "license": "ISC", "main": "lib/index.js",
  "scripts": {"test": "node --test"}, "devDependencies": {"eslint": "^9"}
}
"""
INDEX = """'use strict';

const { parse } = require('./parse');

/**
 * Joins intervals that overlap or touch.
 *
 * @param {string} text such as "1-4, 3-8"
 */
function merge(text) {
  const found = parse(text).sort((a, b) => a.low - b.low);
  const merged = [];
  for (const next of found) {
    const last = merged[merged.length - 1];
    if (last && next.low <= last.high + 1) {
      last.high = Math.max(last.high, next.high);
    } else {
      merged.push({ low: next.low, high: next.high });
    }
  }
  return merged;
}

function total(text) {
  let sum = 0;
  for (const { low, high } of merge(text)) {
    sum += high - low + 1;
  }
  return sum;
}

module.exports = { merge, total, parse };
"""
PARSE = """'use strict';

exports.parse = function parse(text) {
  const parts = text.split(',').map((part) => part.trim());
  const found = [];
  for (const part of parts) {
    if (part === '') continue;
    const [low, high] = part.split('-').map(Number);
    if (high !== undefined && high < low) {
      throw new RangeError('the end of ' + part + ' comes first');
    }
    found.push({ low, high: high === undefined ? low : high });
  }
  return found;
};

exports.unused = function unused() {
  return 'nothing calls this';
};
"""
TESTS = """'use strict';

const { describe, it } = require('node:test');
const assert = require('node:assert/strict');
const { merge, total, parse } = require('..');

describe('parse', () => {
  it('reads single numbers', () => assert.deepEqual(parse('7'), [{ low: 7, high: 7 }]));
  it('reads ranges', () => {
    assert.deepEqual(parse('1-4, 6-9'), [{ low: 1, high: 4 }, { low: 6, high: 9 }]);
  });
  it('refuses ranges that end first', () => assert.throws(() => parse('4-1'), RangeError));
  it('ignores nothing', () => assert.deepEqual(parse(' , '), []));
});

describe('merge', () => {
  it('keeps what is apart', () => {
    assert.deepEqual(merge('1-2, 5-6'), [{ low: 1, high: 2 }, { low: 5, high: 6 }]);
  });
  it('joins what overlaps', () => assert.deepEqual(merge('1-4, 3-8'), [{ low: 1, high: 8 }]));
  it('joins what touches', () => assert.deepEqual(merge('1-4, 5-8'), [{ low: 1, high: 8 }]));
  it('swallows what is inside', () => assert.deepEqual(merge('1-9, 3-4'), [{ low: 1, high: 9 }]));
});

describe('total', () => {
  it('counts every number once', () => assert.equal(total('1-4, 3-8'), 8));
  it('counts nothing', () => assert.equal(total(''), 0));
});
"""
FILES = {
    "package.json": PACKAGE, "lib/index.js": INDEX, "lib/parse.js": PARSE, "test/intervals.test.js": TESTS,
    "dist/intervals.min.js": INDEX, "README.md": "# intervals\n", ".npmrc": "ignore-scripts=false\n",
}  # fmt: skip


def write(folder: Path, files: dict[str, str] | None = None) -> Path:
    for name, text in (FILES if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
