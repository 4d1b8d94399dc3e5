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
    assert.deepEqual(parse('12-40, 57'), [{ low: 12, high: 40 }, { low: 57, high: 57 }]);
  });
  it('refuses ranges that end first', () => assert.throws(() => parse('4-1'), RangeError));
  it('ignores nothing', () => assert.deepEqual(parse(' , '), []));
});

describe('merge', () => {
  it('keeps what is apart', () => {
    assert.deepEqual(merge('1-2, 5-6'), [{ low: 1, high: 2 }, { low: 5, high: 6 }]);
    assert.deepEqual(merge('20-31, 45-60, 50-72'), [{ low: 20, high: 31 }, { low: 45, high: 72 }]);
  });
  it('joins what overlaps', () => assert.deepEqual(merge('1-4, 3-8'), [{ low: 1, high: 8 }]));
  it('joins what touches', () => {
    assert.deepEqual(merge('1-4, 5-8'), [{ low: 1, high: 8 }]);
    assert.deepEqual(merge('40-41, 10-14, 15-32'), [{ low: 10, high: 32 }, { low: 40, high: 41 }]);
    for (const n of [12, 37, 85]) assert.equal(merge(`2-${n}, ${n + 1}-99, ${n * 3}`)[0].high, 99);
  });
  it('swallows what is inside', () => {
    assert.deepEqual(merge('1-9, 3-4'), [{ low: 1, high: 9 }]);
    assert.deepEqual(merge('25-31, 12-60, 13'), [{ low: 12, high: 60 }]);
  });
});

describe('total', () => {
  it('counts every number once', () => {
    assert.equal(total('1-4, 3-8'), 8);
    assert.equal(total('12-40, 35-61'), 50);
    assert.equal(total('7, 15-22, 90-97'), 17);
  });
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
