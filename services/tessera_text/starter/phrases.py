"""Phrasings of the starter's questions: some to train on, and some that only judge it.

A phrasing is text with places in braces. Knows neither numbers nor answers nor the split of operands.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phrasings:
    """Phrasings of one question; those in `held_out` are never trained on."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]


IMPERATIVES = (
    "Add", "Arrange", "Calculate", "Change", "Compute", "Convert", "Divide", "Express", "Find", "Give", "List",
    "Multiply", "Order", "Put", "Sort", "Split", "Subtract", "Sum", "Take", "Tell", "Write",
)  # fmt: skip
"""Verbs before which people write \"please\"."""

OPENINGS = (
    "Please tell me: ",
    "Hi! ",
    "Hello, ",
    "Quick question: ",
    "Can you help? ",
    "I need help. ",
    "Hey, ",
    "So, ",
)
CLOSINGS = (" Thanks!", " Thank you.", " Please answer.", " I am not sure.", " Just the answer, please.")

NAMES = ("Tom", "Anna", "Ben", "Maria", "Omar", "Lucy", "Ivan", "Mei", "Sara", "Paul", "Nina", "Jack", "Emma", "Ravi")
THINGS = (
    "apples", "books", "coins", "stamps", "marbles", "cards", "pencils", "eggs", "shells", "tickets", "oranges",
    "stickers", "flowers", "cookies", "balls", "stones", "photos", "cups", "keys", "toys",
)  # fmt: skip
BOXES = ("boxes", "bags", "baskets", "shelves", "rows", "jars", "crates", "packs")

ADD = Phrasings(
    (
        "What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "What is {a} plus {b}?", "Add {a} and {b}.",
        "How much is {a} plus {b}?", "What is the sum of {a} and {b}?", "Calculate {a} + {b}.", "{a} plus {b}",
        "What do you get when you add {b} to {a}?", "Find the total of {a} and {b}.", "Compute {a}+{b}.",
        "If I add {a} and {b}, what do I get?", "Sum up {a} and {b}.", "Tell me what {a} plus {b} is.",
        "Evaluate {a} + {b}.", "Solve {a} + {b}.", "What is {a} added to {b}?", "Can you add {a} and {b}?",
        "Could you calculate {a} + {b}?", "Give me the sum of {a} and {b}.", "I need the sum of {a} and {b}.",
        "How much do {a} and {b} make together?", "{a} and {b} together", "Increase {a} by {b}.",
        "What would {a} plus {b} be?", "{a} + {b} is what?", "Do you know what {a} + {b} is?", "Find {a} plus {b}.",
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things} and {other} has {b}. How many do they have together?",
        "There are {a} {things} in one box and {b} in another. How many {things} are there in all?",
        "A shop sold {a} {things} on Monday and {b} on Tuesday. How many did it sell?",
        "{name} reads {a} pages today and {b} pages tomorrow. How many pages is that?",
        "{name} had {a} {things} and got {b} more from {other}. How many {things} does {name} have now?",
        "{name} picks {a} {things} and {other} gives {name} {b} more. How many {things} is that?",
        "{name} bought {a} {things}, then found {b} more. How many {things} are there now?",
        "{name} collects {a} {things} and wins another {b}. How many {things} does {name} own?",
        "{other} made {a} {things} and {name} made {b}. How many did they make in all?",
        "There were {a} {things} in a shop. {b} more came. How many {things} does the shop have?",
    ),
    (
        "Work out {a} + {b}.", "What does {a} + {b} equal?", "What is the total of {a} and {b}?",
        "Please add {b} to {a}.",
        "{name} finds {a} {things} and buys {b} more. How many {things} does {name} have?",
    ),
)  # fmt: skip

SUBTRACT = Phrasings(
    (
        "What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "What is {a} minus {b}?",
        "Subtract {b} from {a}.", "How much is {a} minus {b}?", "What is the difference of {a} and {b}?",
        "Calculate {a} - {b}.", "{a} minus {b}", "Take {b} away from {a}.", "What is left of {a} if I take away {b}?",
        "Compute {a}-{b}.", "If I subtract {b} from {a}, what do I get?", "Tell me what {a} minus {b} is.",
        "What do you get when you take {b} from {a}?", "Find {a} less {b}.",
        "Evaluate {a} - {b}.", "Solve {a} - {b}.", "Can you subtract {b} from {a}?", "Could you calculate {a} - {b}?",
        "Give me {a} minus {b}.", "I need {a} minus {b}.", "Decrease {a} by {b}.", "What would {a} minus {b} be?",
        "{a} - {b} is what?", "Do you know what {a} - {b} is?", "Reduce {a} by {b}.", "What is {a} without {b}?",
    ),
    (
        "Work out {a} - {b}.", "What does {a} - {b} equal?", "What do you get when you subtract {b} from {a}?",
        "Please take {b} away from {a}.",
    ),
)  # fmt: skip

SUBTRACT_STORIES = Phrasings(
    (
        "{name} has {a} {things} and gives away {b}. How many {things} are left?",
        "{name} had {a} {things} and lost {b}. How many {things} does {name} have now?",
        "There are {a} {things} in a box. {name} takes {b} out. How many {things} are left?",
        "A shop has {a} {things} and sells {b} of them. How many are left?",
        "{name} has {a} {things} and {other} has {b}. How many more does {name} have?",
        "{name} had {a} {things} and ate {b}. How many {things} are left?",
        "{name} bought {a} {things} and used {b}. How many {things} does {name} have left?",
        "There were {a} {things} and {b} broke. How many {things} are left?",
        "{name} finds {a} {things} and gives {other} {b}. How many {things} does {name} keep?",
    ),
    ("{name} had {a} {things} and sold {b}. How many {things} are left?",),
)

MULTIPLY = Phrasings(
    (
        "What is {a} × {b}?", "{a} × {b}", "{a} * {b}", "{a}*{b}", "{a} x {b}", "What is {a} times {b}?",
        "Multiply {a} by {b}.", "What is {a} multiplied by {b}?", "How much is {a} times {b}?", "{a} times {b}",
        "What is the product of {a} and {b}?", "Calculate {a} × {b}.", "Compute {a} * {b}.", "{a} × {b} = ?",
        "If I multiply {a} by {b}, what do I get?", "Tell me what {a} times {b} is.",
        "Evaluate {a} × {b}.", "Solve {a} * {b}.", "Can you multiply {a} by {b}?", "Could you calculate {a} × {b}?",
        "Give me {a} times {b}.", "I need {a} times {b}.", "Multiply {a} and {b}.", "What would {a} times {b} be?",
        "{a} × {b} is what?", "Do you know what {a} × {b} is?", "Find the product of {a} and {b}.",
        "{name} has {a} {boxes} with {b} {things} each. How many {things} is that?",
        "There are {b} {things} in each of {a} {boxes}. How many {things} are there in all?",
        "One ticket costs {a} dollars. How much do {b} tickets cost?",
        "{name} buys {a} {boxes} of {b} {things}. How many {things} is that?",
        "There are {a} {boxes}, and each has {b} {things}. How many {things} are there?",
        "{name} fills {a} {boxes}, {b} {things} in each. How many {things} is that in all?",
        "{a} children have {b} {things} each. How many {things} do they have together?",
    ),
    (
        "Work out {a} × {b}.", "What does {a} × {b} equal?", "Please multiply {a} and {b}.",
        "There are {a} {boxes} with {b} {things} in each. How many {things} are there?",
    ),
)  # fmt: skip

DIVIDE = Phrasings(
    (
        "What is {a} / {b}?", "{a} / {b}", "{a}/{b}", "{a} ÷ {b}", "What is {a} divided by {b}?", "Divide {a} by {b}.",
        "How much is {a} divided by {b}?", "{a} divided by {b}", "Calculate {a} / {b}.", "Compute {a} ÷ {b}.",
        "How many times does {b} go into {a}?", "{a} / {b} = ?", "If I divide {a} by {b}, what do I get?",
        "Tell me what {a} divided by {b} is.", "Split {a} into {b} equal parts.",
        "Evaluate {a} / {b}.", "Solve {a} ÷ {b}.", "Can you divide {a} by {b}?", "Could you calculate {a} / {b}?",
        "Give me {a} divided by {b}.", "I need {a} divided by {b}.", "What would {a} divided by {b} be?",
        "{a} / {b} is what?", "Do you know what {a} ÷ {b} is?", "Find {a} over {b}.",
        "{name} puts {a} {things} into {b} {boxes}. How many go into each?",
        "{a} {things} are shared by {b} friends. How many does each get?",
        "{name} splits {a} {things} among {b} friends. How many does each friend get?",
        "{name} gives {b} children {a} {things} in equal parts. How many does each child get?",
        "{a} {things} go into {b} {boxes}. How many are in each?",
    ),
    (
        "Work out {a} / {b}.", "What does {a} ÷ {b} equal?", "Please divide {a} by {b}.",
        "{name} shares {a} {things} with {b} friends. How many does each get?",
    ),
)  # fmt: skip

SORT = {
    "ascending": Phrasings(
        (
            "Sort {list}.", "Sort these numbers: {list}", "Sort {list} in ascending order.",
            "Put these numbers in order: {list}", "Order {list} from smallest to largest.",
            "Sort the list {list} from low to high.", "Arrange {list} from smallest to largest.", "sort [{list}]",
            "Arrange these numbers in increasing order: {list}", "List these from least to greatest: {list}",
            "Sort {list}, smallest first.",
            "Can you sort {list}?", "Rank {list} from lowest to highest.", "Sort in ascending order: {list}",
            "Write {list} in increasing order.", "Order {list}, lowest first.", "Put {list} in increasing order.",
        ),
        (
            "Put {list} in ascending order.", "Sort these from smallest to largest: {list}",
            "Order these numbers, smallest first: {list}",
        ),
    ),
    "descending": Phrasings(
        (
            "Sort {list} in descending order.", "Order {list} from largest to smallest.",
            "Sort the list {list} from high to low.", "Arrange {list} from largest to smallest.",
            "Arrange these numbers in decreasing order: {list}", "List these from greatest to least: {list}",
            "Sort {list}, largest first.", "Sort these numbers in reverse order: {list}",
            "Rank {list} from highest to lowest.", "Sort in descending order: {list}", "Order {list}, highest first.",
            "Write {list} in decreasing order.", "Put {list} in decreasing order.",
            "Can you sort {list}, largest first?",
        ),
        (
            "Put {list} in descending order.", "Sort these from largest to smallest: {list}",
            "Order these numbers, largest first: {list}",
        ),
    ),
}  # fmt: skip

PICK = {
    "largest": Phrasings(
        (
            "What is the largest of {list}?", "Which number is the largest: {list}?", "Find the maximum of {list}.",
            "What is the maximum of {list}?", "max {list}", "Which of {list} is the biggest?",
            "Give me the highest number in {list}.", "Pick the greatest number: {list}",
            "Tell me the largest of {list}.", "Which of {list} is the highest?", "What is the biggest number: {list}?",
        ),
        ("Which is the largest number in {list}?", "Find the biggest of {list}.", "What is the highest of {list}?"),
    ),
    "smallest": Phrasings(
        (
            "What is the smallest of {list}?", "Which number is the smallest: {list}?", "Find the minimum of {list}.",
            "What is the minimum of {list}?", "min {list}", "Which of {list} is the smallest?",
            "Give me the lowest number in {list}.", "Pick the least number: {list}",
            "Tell me the smallest of {list}.", "Which of {list} is the lowest?", "Which of {list} is the least?",
        ),
        ("Which is the smallest number in {list}?", "Find the lowest of {list}.", "What is the least of {list}?"),
    ),
}  # fmt: skip

MEDIAN = Phrasings(
    (
        "What is the median of {list}?", "Find the median of {list}.", "median {list}", "Give me the median: {list}",
        "Which number is the median of {list}?", "Calculate the median of {list}.",
        "What is the middle value of {list}?",
        "Tell me the median of {list}.", "Which of {list} is in the middle?", "Compute the median of {list}.",
    ),
    ("Work out the median of {list}.", "Find the middle value of {list}.", "What is the median of the list {list}?"),
)  # fmt: skip

CONVERT = Phrasings(
    (
        "Convert {v} {u} to {w}.", "How many {w} are {v} {u}?", "What is {v} {u} in {w}?", "{v} {u} in {w}",
        "{v} {u} to {w}", "How many {w} are in {v} {u}?", "Express {v} {u} in {w}.", "{v} {u} = ? {w}",
        "How many {w} is {v} {u}?", "Change {v} {u} into {w}.", "Tell me {v} {u} in {w}.",
        "How much is {v} {u} in {w}?",
        "I have {v} {u}. How many {w} is that?", "Write {v} {u} in {w}.",
        "How many {w} equal {v} {u}?", "How many {w} do {v} {u} have?", "How many {w} go into {v} {u}?",
        "How many {w} fit into {v} {u}?", "How many {w} does {v} {u} have?", "How many {w} correspond to {v} {u}?",
        "{v} {u} is how many {w}?", "{v} {u} are how many {w}?", "{v} {u} makes how many {w}?",
        "{v} {u} equals how many {w}?", "Turn {v} {u} into {w}.", "What would {v} {u} be in {w}?",
        "In {w}, what is {v} {u}?", "Can you convert {v} {u} to {w}?", "Could you give me {v} {u} in {w}?",
        "Calculate {v} {u} in {w}.", "I need {v} {u} in {w}.", "{v} {u} as {w}", "{v} {u} converted to {w}",
        "{name} has {v} {u}. How many {w} is that?", "Show me {v} {u} in {w}.", "Convert to {w}: {v} {u}",
    ),
    (
        "Please convert {v} {u} into {w}.", "What are {v} {u} in {w}?", "How many {w} make {v} {u}?",
        "Give {v} {u} in {w}.",
    ),
)  # fmt: skip

COMPARE = {
    "larger": Phrasings(
        (
            "Which is larger, {a} or {b}?", "Which number is bigger, {a} or {b}?", "Which is greater: {a} or {b}?",
            "What is larger, {a} or {b}?", "{a} or {b}: which is larger?", "Compare {a} and {b}. Which is larger?",
            "Which of {a} and {b} is larger?", "Which one is larger, {a} or {b}?", "Which is more, {a} or {b}?",
            "Which is the greater number, {a} or {b}?", "{a} or {b}, which one is greater?",
            "Tell me which is larger, {a} or {b}.",
            "Between {a} and {b}, which is larger?", "Pick the larger one: {a} or {b}", "What is more, {a} or {b}?",
        ),
        ("Which is bigger, {a} or {b}?", "Which number is larger: {a} or {b}?"),
    ),
    "smaller": Phrasings(
        (
            "Which is smaller, {a} or {b}?", "Which number is less, {a} or {b}?", "Which is lower: {a} or {b}?",
            "What is smaller, {a} or {b}?", "{a} or {b}: which is smaller?", "Compare {a} and {b}. Which is smaller?",
            "Which of {a} and {b} is smaller?", "Which one is smaller, {a} or {b}?", "What is less, {a} or {b}?",
            "Which is the lesser number, {a} or {b}?", "{a} or {b}, which one is less?",
            "Which of {a} and {b} is less?",
            "Between {a} and {b}, which is smaller?", "Pick the smaller one: {a} or {b}",
            "Tell me which is smaller, {a} or {b}.",
        ),
        ("Which is less, {a} or {b}?", "Which number is smaller: {a} or {b}?"),
    ),
}  # fmt: skip

IS = {
    "larger": Phrasings(
        (
            "Is {a} larger than {b}?", "Is {a} greater than {b}?", "Is {a} more than {b}?", "{a} > {b}?",
            "Is {a} higher than {b}?", "Is the number {a} larger than {b}?", "Is the number {a} greater than {b}?",
            "Is it true that {a} is larger than {b}?", "Does {a} exceed {b}?", "Tell me if {a} is larger than {b}.",
            "Is {a} above {b}?", "Is {a} the larger number compared to {b}?", "Do you think {a} is more than {b}?",
        ),
        ("Is {a} bigger than {b}?",),
    ),
    "smaller": Phrasings(
        (
            "Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} lower than {b}?", "{a} < {b}?",
            "Is the number {a} less than {b}?", "Is the number {a} lower than {b}?", "Is {a} below {b}?",
            "Is it true that {a} is smaller than {b}?", "Tell me if {a} is smaller than {b}.",
            "Is {a} the smaller number compared to {b}?", "Do you think {a} is less than {b}?",
        ),
        ("Is the number {a} smaller than {b}?",),
    ),
}  # fmt: skip

MEASURE = Phrasings(
    (
        "Which is {word}, {x} or {y}?", "What is {word}, {x} or {y}?", "Which is {word}: {x} or {y}?",
        "{x} or {y}: which is {word}?", "Compare {x} and {y}. Which is {word}?", "{x} or {y}, which one is {word}?",
        "Tell me which is {word}, {x} or {y}.",
        "Which of {x} and {y} is {word}?", "Is {x} or {y} {word}?", "Between {x} and {y}, which is {word}?",
        "Can you tell me which is {word}: {x} or {y}?", "{x} and {y}: which one is {word}?",
    ),
    ("Which one is {word}, {x} or {y}?", "What is {word}: {x} or {y}?"),
)  # fmt: skip

REFUSAL = "I can only answer questions about arithmetic, sorting, units and comparisons."

OTHER = Phrasings(
    (
        "What is the capital of {place}?", "Who wrote the {noun} song?", "Tell me a joke.",
        "Tell me a story about a {noun}.",
        "Write a poem about the {noun}.", "How are you?", "Hello", "Hi", "Hello!", "Good morning", "Hey there",
        "What is your name?", "Who are you?", "What is a {noun}?", "Where is {place}?", "Who was the king of {place}?",
        "What is the weather like in {place}?", "Translate {noun} into French.", "How do I cook {noun} soup?",
        "Why is the sky blue?", "Do you like {noun}?", "Explain how a {noun} works.", "What color is a {noun}?",
        "Write an essay about {place}.", "Can you draw a {noun}?", "Recommend a book about {place}.",
        "I feel sad today.",
        "When was {place} founded?", "What language do people speak in {place}?", "Sing a song for me.",
        "Which team won the match in {place}?", "Write Python code for a {noun} game.", "What is the meaning of life?",
        "Summarize this text about the {noun}.", "Is the {noun} dangerous?", "My {noun} is broken.", "I love {place}.",
        "Give me a recipe with {noun}.", "How old is the {noun}?", "What does {noun} mean?", "Thanks!", "Goodbye",
        "Fix the grammar: the {noun} are nice", "Name three animals that live in {place}.", "Who invented the {noun}?",
        "Let us talk about the {noun}.", "What should I eat for dinner?", "Where can I buy a {noun}?", "asdf",
        "help me",
        "Describe the {noun} in the picture.", "Do you speak the language of {place}?", "What happened in {place}?",
    ),
    (
        "What is the largest city in {place}?", "Tell me about the {noun}.", "Write a short story about {place}.",
        "How does a {noun} work?", "Who discovered {place}?", "What do you think about the {noun}?",
        "Why do people like {place}?", "Can you recommend a good {noun}?", "Good evening!", "What can a {noun} do?",
    ),
)  # fmt: skip

PLACES = Phrasings(
    (
        "France", "Japan", "Brazil", "Egypt", "Canada", "India", "Kenya", "Norway", "Peru", "London", "Berlin", "Rome",
        "China", "Texas", "Mexico", "Spain", "Poland", "Moscow", "Paris", "Africa", "Chile", "Turkey", "Vienna",
    ),
    ("Italy", "Sweden", "Madrid", "Ghana"),
)  # fmt: skip

NOUNS = Phrasings(
    (
        "cat", "dog", "horse", "river", "mountain", "computer", "guitar", "bicycle", "train", "tomato", "chicken",
        "moon", "sun", "ocean", "forest", "bird", "engine", "phone", "camera", "movie", "house", "garden", "potato",
        "dragon", "rocket", "piano", "bridge", "castle", "teacher", "doctor", "winter", "summer", "rain", "snow",
        "bread", "cheese", "coffee", "tea", "robot", "planet", "tiger", "fish", "car", "ship", "window", "table",
        "chair", "book", "paper", "apple", "clock", "key", "stone", "tree", "flower", "butterfly", "elephant",
    ),
    ("rabbit", "lamp", "violin", "volcano", "wolf"),
)  # fmt: skip
