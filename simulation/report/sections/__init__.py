"""The sections of a report: each is a function from what a report is on (`Study`) to what it says (`document`).

`present` lists them in the order of a page. The answers to a question to the sites (`twinflower.queries`) have their
section in the module and the function with the question's name.
"""
