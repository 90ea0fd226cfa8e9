"""The paper's method, a file for each part of its Figure 3: order -> partition -> read -> core -> write."""
