"""Short programming requests."""

from __future__ import annotations

import random

from recovery.types import Message, Prompt

LANGUAGES = ("Python", "JavaScript", "Go", "Java", "Rust", "C", "Ruby", "TypeScript")
TASKS = (
    "reverses a string", "counts the vowels in a text", "finds the largest number in a list",
    "checks whether a word is a palindrome", "adds up the even numbers of a list",
    "removes duplicates and keeps the order", "turns a temperature from Celsius into Fahrenheit",
    "tells whether a year is a leap year", "computes a factorial", "gives the n-th Fibonacci number",
    "merges two sorted lists", "counts how often each word occurs in a text", "finds the second smallest element",
    "checks whether brackets are balanced", "rotates a list by k places", "computes the greatest common divisor",
    "turns a Roman numeral into a number", "flattens a nested list", "splits a list into chunks of n",
    "swaps the keys and values of a map", "computes the median of some numbers", "finds all primes below n",
    "capitalises the first letter of every word", "counts the lines of a file", "draws a random element from a list",
    "does a binary search", "multiplies two matrices", "sorts words by length",
    "validates a date written as YYYY-MM-DD", "finds the words that two texts share", "parses key=value lines",
    "turns seconds into hours, minutes and seconds", "computes a running average",
    "groups words by their first letter", "checks whether two words are anagrams", "pads a number with zeros",
    "finds the longest word of a sentence", "tells whether a number is a power of two",
    "turns a number into binary digits", "transposes a table",
)  # fmt: skip
_FORMS = (
    "Write a {l} function that {d}.",
    "In {l}, write a function that {d}. Show one call of it.",
    "I need a small {l} function that {d}; please add a comment.",
    "How do I write a function in {l} that {d}?",
    "Give me {l} code that {d}, and nothing but code.",
)
_QUESTIONS = (
    "What does it mean that a function is recursive? Give a tiny example in {l}.",
    "How do I read a text file line by line in {l}?",
    "How are errors handled in {l}? Show a short example.",
    "What is the difference between a list and a map in {l}?",
    "How do I write a unit test in {l}?",
    "Show me a loop in {l} that prints the numbers from one to ten.",
    "How do I format a number with two decimals in {l}?",
)


def code(rng: random.Random) -> Prompt:
    """Draw one programming request."""
    language = rng.choice(LANGUAGES)
    if rng.random() < 0.9:
        text = rng.choice(_FORMS).format(l=language, d=rng.choice(TASKS))
    else:
        text = rng.choice(_QUESTIONS).format(l=language)
    return Prompt("", (Message(role="user", content=text),), tags=("code", language.lower()))
