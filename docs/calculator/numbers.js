// Numbers as Python has them: exact fractions for counts of steps and samples, and text with Python's rounding.
"use strict";

/** An exact number: counts of steps stay exact, as Python's Fraction. */
class Exact {
  constructor(numerator, denominator = 1n) {
    if (denominator < 0n) [numerator, denominator] = [-numerator, -denominator];
    let [a, b] = [numerator < 0n ? -numerator : numerator, denominator];
    while (b) [a, b] = [b, a % b];
    this.n = numerator / (a || 1n);
    this.d = denominator / (a || 1n);
  }

  /** The exact value of a number, or of a text such as "12", "12.5" or "512/3". */
  static of(value) {
    if (value instanceof Exact) return value;
    if (typeof value === "string") {
      const [top, bottom] = value.split("/");
      const [whole, rest = ""] = top.split(".");
      return new Exact(BigInt(whole + rest), bottom === undefined ? 10n ** BigInt(rest.length) : BigInt(bottom));
    }
    let denominator = 1n;
    for (; !Number.isInteger(value); value *= 2) denominator *= 2n;
    return new Exact(BigInt(value), denominator);
  }

  times(other) { return new Exact(this.n * other.n, this.d * other.d); }
  over(other) { return new Exact(this.n * other.d, this.d * other.n); }
  plus(other) { return new Exact(this.n * other.d + other.n * this.d, this.d * other.d); }
  minus(other) { return new Exact(this.n * other.d - other.n * this.d, this.d * other.d); }
  power(k) { return k < 0 ? new Exact(this.d, this.n).power(-k) : new Exact(this.n ** BigInt(k), this.d ** BigInt(k)); }
  equals(other) { return this.n === other.n && this.d === other.d; }
  less(other) { return this.n * other.d < other.n * this.d; }
  get whole() { return this.d === 1n; }
  get floor() { const q = this.n / this.d; return q * this.d > this.n ? q - 1n : q; }
  get ceil() { return -new Exact(-this.n, this.d).floor; }

  /** The nearest whole number; of two, the even one. */
  get rounded() {
    const low = this.floor, twice = 2n * (this.n - low * this.d);
    return twice > this.d || (twice === this.d && low % 2n !== 0n) ? low + 1n : low;
  }

  /** The nearest float. */
  get number() {
    if (this.n === 0n) return 0;
    if (this.n < 0n) return -new Exact(-this.n, this.d).number;
    const shift = 66 - this.n.toString(2).length + this.d.toString(2).length;
    const top = shift >= 0 ? this.n << BigInt(shift) : this.n, bottom = shift >= 0 ? this.d : this.d << BigInt(-shift);
    const quotient = top / bottom;
    return Number(quotient * bottom === top ? quotient : quotient | 1n) * 2 ** -shift;
  }

  toString() { return this.whole ? String(this.n) : `${this.n}/${this.d}`; }
}

const ZERO = new Exact(0n), ONE = new Exact(1n);
const float = (value) => (value instanceof Exact ? value.number : value);
const grouped = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

/** A decimal number of its digits, with the point behind digit `point + 1`; "%g" drops the zeros at its end. */
function placed(digits, point) {
  const text = digits.replace(/0+$/, "") || "0";
  if (point < 0) return `0.${"0".repeat(-point - 1)}${text}`;
  const whole = text.padEnd(point + 1, "0");
  return whole.length > point + 1 ? `${whole.slice(0, point + 1)}.${whole.slice(point + 1)}` : whole;
}

function scientific(digits, exponent) {
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${placed(digits, 0)}e${exponent < 0 ? "-" : "+"}${size}`;
}

/** Python's `f"{x:.{digits}g}"`. */
function general(x, digits) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
  if (x < 0) return `-${general(-x, digits)}`;
  if (x === 0) return "0";
  let exponent = Number(x.toExponential(digits - 1).split("e")[1]);
  let rounded = Exact.of(x).times(new Exact(10n).power(digits - 1 - exponent)).rounded;
  if (rounded === 10n ** BigInt(digits)) [rounded, exponent] = [rounded / 10n, exponent + 1];
  const text = String(rounded);
  return exponent < -4 || exponent >= digits ? scientific(text, exponent) : placed(text, exponent);
}

/** Python's `repr` of a float: the shortest text that reads as this float. */
function literal(x) {
  if (!Number.isFinite(x)) return general(x, 1);
  if (x < 0 || Object.is(x, -0)) return `-${literal(-x)}`;
  const [mantissa, power] = x.toExponential().split("e"), exponent = Number(power);
  const digits = mantissa.replace(".", "");
  if (exponent < -4 || exponent >= 16) return scientific(digits, exponent);
  const text = placed(digits, exponent);
  return text.includes(".") ? text : `${text}.0`;
}

/** Python's `repr` of what was given. */
function repr(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") {
    return Number.isInteger(value) && Math.abs(value) < 1e15 ? String(value) : literal(value);
  }
  const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
  return quote + value.replaceAll("\\", "\\\\").replaceAll(quote, `\\${quote}`) + quote;
}

/** `rootscale.format.show`: six significant digits, thousands separated. */
function show(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "number" && Number.isInteger(value)) value = Exact.of(value);
  if (value instanceof Exact && value.whole) {
    const size = value.n < 0n ? -value.n : value.n;
    if (size < 10n ** 15n) return (value.n < 0n ? "-" : "") + grouped(String(size));
  }
  const x = float(value), size = Math.abs(x);
  if (!(size >= 1000 && size < 1e15)) return general(x, 6);
  const cents = String(Exact.of(size).times(new Exact(100n)).rounded);
  return `${x < 0 ? "-" : ""}${grouped(cents.slice(0, -2))}.${cents.slice(-2)}`;
}

/** A value as Python source, a number without the last digits that only show rounding (`rootscale.snippets`). */
function source(value) {
  if (Array.isArray(value)) return `(${value.map(source).join(", ")})`;
  if (typeof value === "boolean") return repr(value);
  const x = float(value);
  if (Math.abs(x) >= 1 && (value instanceof Exact ? value.whole : Number.isInteger(x))) return String(Exact.of(value));
  return literal(Number(general(x, 12)));
}

/** A template, filled in; `{name!r}` is the `repr` of a text. */
function fill(template, words) {
  return template.replace(/\{(\w+)(!r)?\}/g, (_, name, quoted) => (quoted ? repr(words[name]) : String(words[name])));
}
